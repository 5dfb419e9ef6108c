package main

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/soarbook/soarbook/data/gostd"
	"github.com/soarbook/soarbook/policy"
	"github.com/soarbook/soarbook/policy/device"
	"github.com/soarbook/soarbook/retrieval"
)

func BenchmarkBatch(b *testing.B) {
	ctx := context.Background()
	kb, err := gostd.Ensure(ctx)
	if err != nil {
		b.Fatal(err)
	}
	index, err := retrieval.OpenCorpus(ctx, kb.Path(gostd.SynopsesFile), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer index.Close()
	records, err := kb.Records()
	if err != nil {
		b.Fatal(err)
	}
	dir := filepath.Join(b.TempDir(), "untrained")
	if err := writeUntrained(dir, records, 1); err != nil {
		b.Fatal(err)
	}
	o := policy.DefaultOptions()
	o.Device = device.Go
	p, err := policy.Open(ctx, dir, o)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	l, err := newLessons(p, index, kb, records, standard)
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		if _, err := l.batch(ctx, rng, map[string]int{}); err != nil {
			b.Fatal(err)
		}
	}
}
