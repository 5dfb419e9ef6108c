package runs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/gowebpki/jcs"
)

// Canonical returns JSON in its canonical form (RFC 8785), without a final newline.
func Canonical(b []byte) ([]byte, error) {
	c, err := jcs.Transform(b)
	if err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	return c, nil
}

// SHA256 returns the SHA-256 of b in lower-case hex.
func SHA256(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// FileSHA256 returns the SHA-256 of a file in lower-case hex.
func FileSHA256(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("sha-256 of %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
