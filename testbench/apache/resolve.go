//go:build unix

package apache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// Default is the version that tests run against when none is named.
	Default = "4.3.1"
	// Older is the oldest line that geogate supports.
	Older = "3.9.1"

	// cacheEnv names the directory for resolved class paths.
	cacheEnv = "GEOGATE_APACHE_CACHE"
	// logBinding fits slf4j 1.7, which both supported lines of Kafka use.
	logBinding = "2.24.3"
	// mavenPlugin is pinned so that a run today resolves as one tomorrow.
	mavenPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
)

// ClassPath is what Java's -cp takes: absolute file names joined by colons.
type ClassPath string

// complete reports whether every file of the class path is still there.
func (c ClassPath) complete() bool {
	if c == "" {
		return false
	}
	for _, jar := range strings.Split(string(c), ":") {
		if _, err := os.Stat(jar); err != nil {
			return false
		}
	}
	return true
}

var versionForm = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// Resolve returns the class path of a version of Kafka. The first call runs
// Maven, which fetches what its local repository lacks; later calls read the
// cache, GEOGATE_APACHE_CACHE or the user's cache directory, as long as the
// files it names exist.
func Resolve(ctx context.Context, version string) (ClassPath, error) {
	if !versionForm.MatchString(version) {
		return "", fmt.Errorf("resolve kafka: version %q is not of the form 4.3.1", version)
	}
	dir, err := cacheDir(version)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "classpath")
	if raw, err := os.ReadFile(file); err == nil && ClassPath(raw).complete() {
		return ClassPath(raw), nil
	}
	cp, err := runMaven(ctx, dir, version)
	if err != nil {
		return "", fmt.Errorf("resolve kafka %s: %w", version, err)
	}
	// Two test processes may resolve at once; rename leaves either's whole file.
	tmp := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := os.WriteFile(tmp, []byte(cp), 0o644); err != nil {
		return "", fmt.Errorf("keep class path: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return "", fmt.Errorf("keep class path: %w", err)
	}
	return cp, nil
}

// cacheDir returns the cache directory of a version and creates it.
func cacheDir(version string) (string, error) {
	root := os.Getenv(cacheEnv)
	if root == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache directory (or set %s): %w", cacheEnv, err)
		}
		root = filepath.Join(user, "geogate", "apache-kafka")
	}
	dir := filepath.Join(root, version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create cache directory: %w", err)
	}
	return dir, nil
}

// runMaven resolves the artifacts in a directory of this run's own.
func runMaven(ctx context.Context, dir, version string) (ClassPath, error) {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("find maven: %w", err)
	}
	work, err := os.MkdirTemp(dir, "resolve-")
	if err != nil {
		return "", fmt.Errorf("create work directory: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), []byte(pom(version)), 0o644); err != nil {
		return "", fmt.Errorf("write pom: %w", err)
	}
	out := filepath.Join(work, "out")
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", mavenPlugin, "-Dmdep.outputFile="+out)
	cmd.Dir = work
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run maven: %w: %s", err, tail(said.Bytes()))
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		return "", fmt.Errorf("read class path: %w", err)
	}
	cp := ClassPath(strings.TrimSpace(string(raw)))
	if !cp.complete() {
		return "", errors.New("maven named files that do not exist")
	}
	return cp, nil
}

// pom declares the broker and a binding for its logs, without which it logs
// nothing. kafka-tools holds classes the broker still needs from 4.0 on.
func pom(version string) string {
	deps := [][3]string{
		{"org.apache.kafka", "kafka_2.13", version},
		{"org.apache.logging.log4j", "log4j-slf4j-impl", logBinding},
	}
	if !strings.HasPrefix(version, "3.") {
		deps = append(deps, [3]string{"org.apache.kafka", "kafka-tools", version})
	}
	var b strings.Builder
	b.WriteString("<project><modelVersion>4.0.0</modelVersion><groupId>geogate</groupId>" +
		"<artifactId>apache</artifactId><version>1</version><packaging>pom</packaging><dependencies>")
	for _, d := range deps {
		fmt.Fprintf(&b, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>", d[0], d[1], d[2])
	}
	b.WriteString("</dependencies></project>\n")
	return b.String()
}

// tail returns the end of a process's output, for an error text.
func tail(out []byte) string {
	const most = 1500
	if len(out) > most {
		out = out[len(out)-most:]
	}
	return strings.TrimSpace(string(out))
}
