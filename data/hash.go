package data

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash returns a number that is fixed by its texts alone, on every machine and in every version: the first 8 bytes, big-endian, of
// the SHA-256 of domain, 0, purpose, 0, text. Data sets draw their splits from it, one domain for each set and a purpose for each
// choice. Neither domain nor purpose may hold a zero byte, or two of them could run into each other.
func Hash(domain, purpose, text string) uint64 {
	sum := sha256.Sum256([]byte(domain + "\x00" + purpose + "\x00" + text))
	return binary.BigEndian.Uint64(sum[:8])
}
