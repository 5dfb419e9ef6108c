package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// ID names one rollout. All of its randomness derives from it, so that any rollout can be replayed alone.
type ID struct {
	Seed     uint64 `json:"seed"`     // the run's seed
	Step     int    `json:"step"`     // the training step, or any number that tells evaluations apart
	Question string `json:"question"` // the question's id
	Sample   int    `json:"sample"`   // index within the question's group, from 0
}

func (id ID) String() string {
	return fmt.Sprintf("%q (seed %d, step %d, sample %d)", id.Question, id.Seed, id.Step, id.Sample)
}

// ReplySeed returns the seed of the request for the reply of a turn (from 0).
func (id ID) ReplySeed(turn int) uint64 { return id.seed("reply", turn) }

// RecallSeed returns the seed of the isolated recall of a turn (from 0).
func (id ID) RecallSeed(turn int) uint64 { return id.seed("recall", turn) }

// seed is the first 8 bytes, big-endian, of the SHA-256 of the stream's name, 0, seed, step, sample and turn as 8 bytes each,
// and the question's id. Every part but the last is of fixed length or terminated, so two ids never collide by spelling.
func (id ID) seed(stream string, turn int) uint64 {
	b := append([]byte(stream), 0)
	b = binary.BigEndian.AppendUint64(b, id.Seed)
	for _, n := range []int{id.Step, id.Sample, turn} {
		b = binary.BigEndian.AppendUint64(b, uint64(int64(n)))
	}
	sum := sha256.Sum256(append(b, id.Question...))
	return binary.BigEndian.Uint64(sum[:])
}
