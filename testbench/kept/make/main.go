//go:build unix

// Command make makes what testbench/data/kept holds: it runs two regions and a
// witness with a geogate program of an earlier version, writes, cuts, fences and kills
// until every format occurs, packs what is left on the disk, and has the same program
// read a copy of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/geogate/geogate/testbench/kept"
)

// within bounds the whole making.
const within = 10 * time.Minute

func main() {
	program := flag.String("geogate", "", "`file` of the program, built from the version whose data is to be kept")
	out := flag.String("out", "testbench/data/kept", "`directory` for the archive, the golden file and the configuration")
	again := flag.Bool("reread", false, "keep the archives that there are, and only write down again what the program reads from them")
	work := flag.String("work", "", "`directory` to run in, kept afterwards; default a temporary one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := run(ctx, *program, *out, *work, *again); err != nil {
		fmt.Fprintf(os.Stderr, "make: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program, out, work string, again bool) error {
	if program == "" {
		return errors.New("-geogate is missing")
	}
	if work == "" {
		dir, err := os.MkdirTemp("", "kept-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		work = dir
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if first := filepath.Join(work, "first"); !again {
		if err := leave(ctx, program, first, out); err != nil {
			return fmt.Errorf("run the deployment (its logs are in %s): %w", first, err)
		}
	}
	second := filepath.Join(work, "second")
	if err := reread(ctx, program, second, out); err != nil {
		return fmt.Errorf("read the copy (its logs are in %s): %w", second, err)
	}
	return nil
}

// leave runs a deployment through its history and packs what it leaves.
func leave(ctx context.Context, program, dir, out string) error {
	d, err := prepare(program, dir)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.start(ctx, "witness", "us", "eu"); err != nil {
		return err
	}
	h := history{deployment: d}
	if err := h.run(ctx); err != nil {
		return err
	}
	if err := h.held.Save(filepath.Join(out, kept.HeldFile)); err != nil {
		return err
	}
	d.note("pack")
	for _, name := range []string{"us.yaml", "eu.yaml", "witness.yaml", "ownership.yaml", "residency.yaml", "secret"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(out, name), raw, 0o644)
		}
		if err != nil {
			return err
		}
	}
	for _, member := range []string{"us", "eu", "witness"} {
		if err := kept.Pack(filepath.Join(dir, member), filepath.Join(out, kept.Archive(member))); err != nil {
			return err
		}
	}
	return nil
}

// reread starts the same program on a copy and writes down what it reads there.
func reread(ctx context.Context, program, dir, out string) error {
	d, err := prepare(program, dir)
	if err != nil {
		return err
	}
	defer d.close()
	for _, member := range []string{"us", "eu", "witness"} {
		if err := kept.Unpack(filepath.Join(out, kept.Archive(member)), filepath.Join(dir, member)); err != nil {
			return err
		}
	}
	if err := d.start(ctx, "witness", "us", "eu"); err != nil {
		return err
	}
	if err := d.settle(ctx); err != nil {
		return err
	}
	d.note("read")
	sections, err := stable(ctx, d.all())
	if err != nil {
		return err
	}
	held, err := kept.LoadHeld(filepath.Join(out, kept.HeldFile))
	if err != nil {
		return err
	}
	if err := held.Check(ctx, d.region); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, kept.GoldenFile), kept.Format(sections), 0o644)
}

// unchanged is how often in a row a snapshot has to be the same.
const unchanged = 5

// stable reads until nothing changes any more.
func stable(ctx context.Context, regions []*kept.Region) (last []kept.Section, err error) {
	same := 0
	err = kept.Poll(ctx, func() error {
		next, err := kept.Snapshot(ctx, regions)
		if err != nil {
			return err
		}
		diff := kept.Diff(last, next)
		last = next
		if diff != "" {
			same = 0
			return fmt.Errorf("what is read still changes: %s", diff)
		}
		if same++; same < unchanged {
			return errors.New("what is read has not been the same for long")
		}
		return nil
	})
	return last, err
}
