package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

// documents are all documents by their path below root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			docs[filepath.ToSlash(name)] = read(t, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "docs/guide/operators.md"} {
		if docs[name] == "" {
			t.Fatalf("%s was not found", name)
		}
	}
	return docs
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sources calls fn with every Go file of the module.
func sources(t *testing.T, fn func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "tools") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			fn(filepath.ToSlash(name), read(t, name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// block is a fenced block of a document.
type block struct {
	line  int    // of its opening fence, from 1
	lang  string // what stands behind the fence
	text  string
	mark  string   // the word of the comment in the line before: run, three, start, file
	arg   string   // what stands behind a colon in it
	wants []string // what its output contains, in this order
}

// runs tells whether the block is a script that some test runs.
func (b *block) runs() bool { return b.lang == "sh" && (b.mark == "run" || b.mark == "three") }

var markForm = regexp.MustCompile(`^<!-- (run|three|start|file)(?:: (.*))? -->$`)

// blocks finds the fenced blocks of a document. Marked with <!-- run --> a block
// runs against a demo, with <!-- three --> against three processes of their own, of
// which <!-- start --> starts one a line and <!-- file: NAME --> is a file.
// <!-- run: A | B --> says what the output contains, and so does a block "output"
// that follows it.
func blocks(t *testing.T, name, text string) (all []block) {
	t.Helper()
	var mark string // the last line that is not blank
	var open *block
	for n, line := range strings.Split(text, "\n") {
		switch {
		case open != nil && line == "```":
			if last := len(all) - 1; open.lang == "output" {
				if last < 0 || !all[last].runs() {
					t.Errorf("%s:%d: an output without a block that runs", name, open.line)
				} else {
					all[last].wants = slices.Concat(all[last].wants, strings.Split(strings.TrimSpace(open.text), "\n"))
				}
			}
			all, open, mark = append(all, *open), nil, ""
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			open = &block{line: n + 1, lang: strings.TrimPrefix(line, "```")}
			if m := markForm.FindStringSubmatch(mark); m != nil {
				open.mark, open.arg = m[1], m[2]
			}
			if open.runs() && open.arg != "" {
				open.wants = strings.Split(open.arg, " | ")
			}
		case strings.TrimSpace(line) != "":
			mark = line
		}
	}
	if open != nil {
		t.Errorf("%s:%d: a block is not closed", name, open.line)
	}
	return all
}

// missing is the first of wants that does not stand in got, each behind the one
// before; … stands for any text within a line.
func missing(got string, wants []string) string {
	for _, want := range wants {
		at := 0
		found := false
		for line := range strings.Lines(got) {
			if at += len(line); contains(line, strings.Split(want, "…")) {
				found = true
				break
			}
		}
		if !found {
			return want
		}
		got = got[at:]
	}
	return ""
}

func contains(line string, parts []string) bool {
	for _, part := range parts {
		i := strings.Index(line, part)
		if i < 0 {
			return false
		}
		line = line[i+len(part):]
	}
	return true
}

func TestMissing(t *testing.T) {
	for _, c := range []struct {
		got, wants, want string
	}{
		{"a b c\nd e\n", "a…c|d", ""},
		{"a b c\nd e\n", "d|a", "a"},
		{"a b c\n", "c…a", "c…a"},
		{"a\nb\n", "a…b", "a…b"},
		{"a\n", "a|a", "a"},
		{"", "a", "a"},
	} {
		if got := missing(c.got, strings.Split(c.wants, "|")); got != c.want {
			t.Errorf("missing(%q, %q) = %q, want %q", c.got, c.wants, got, c.want)
		}
	}
}

func TestBlocks(t *testing.T) {
	all := blocks(t, "x", "<!-- run: a | b -->\n\n```sh\nx\n```\n\n```output\nc\n```\n```sh\ny\n```\n")
	if len(all) != 3 || !all[0].runs() || !slices.Equal(all[0].wants, []string{"a", "b", "c"}) || all[0].text != "x\n" || all[2].runs() {
		t.Fatalf("%+v", all)
	}
}
