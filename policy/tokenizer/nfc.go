package tokenizer

import (
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Hugging Face's NFC comes from a Rust crate with the tables of Unicode 9. golang.org/x/text/unicode/norm differs from it
// (and, in the second and third point, from the standard):
//   - it knows the marks and compositions of Unicode 10 to 15 (newerThanHF below);
//   - it looks compositions up by the low 16 bits of a code point, so that U+10041 U+0301 becomes "Á";
//   - it puts U+034F between more than 30 marks (the Stream-Safe Text Format).
//
// So only its tables are used, for single code points, and the algorithm (UAX #15) is here. The one string in 5,000 that
// an earlier trial encoded differently came from these points.

// newerThanHF are the ranges of code points that Hugging Face's tables take for unassigned although x/text gives them a
// combining class or a decomposition: found by comparing the two for every code point (tests/reference/tokenizer_fuzz.py --every-code-point).
var newerThanHF = [][2]rune{
	{0x07fd, 0x07fd}, {0x0898, 0x089f}, {0x08ca, 0x08d3}, {0x09fe, 0x09fe}, {0x0c3c, 0x0c3c}, {0x0d3b, 0x0d3c},
	{0x0eba, 0x0eba}, {0x1715, 0x1715}, {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c}, {0x10d24, 0x10d27},
	{0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
	{0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
	{0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
	{0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
	{0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
}

// canonical returns the combining class of r and its full canonical decomposition, nil if it is its own.
func canonical(r rune) (class uint8, decomposition []byte) {
	for _, x := range newerThanHF {
		if r <= x[1] {
			if r >= x[0] {
				return 0, nil
			}
			break
		}
	}
	var b [utf8.UTFMax]byte
	p := norm.NFD.Properties(b[:utf8.EncodeRune(b[:], r)])
	return p.CCC(), p.Decomposition()
}

const (
	hangulL, hangulV, hangulT, hangulS      = 0x1100, 0x1161, 0x11a7, 0xac00
	hangulLs, hangulVs, hangulTs            = 19, 21, 28
	lastComposite                      rune = 0x1ffff // no code point of a later plane is a primary composite
)

// compositions maps pairs to their primary composite (Hangul aside).
var compositions = sync.OnceValue(func() map[[2]rune]rune {
	pairs := map[[2]rune]rune{}
	for r := rune(0xc0); r <= lastComposite; r++ {
		if r >= hangulS && r < hangulS+hangulLs*hangulVs*hangulTs || r >= 0xd800 && r < 0xe000 {
			continue
		}
		_, d := canonical(r)
		if utf8.RuneCount(d) < 2 { // no decomposition, or a singleton, which is never composed
			continue
		}
		// A code point excluded from composition is not its own NFC. Beyond the BMP, norm may answer with another
		// composite (see above), but it answers with one code point.
		if c := []rune(norm.NFC.String(string(r))); len(c) != 1 || r < 0x10000 && c[0] != r {
			continue
		}
		last, n := utf8.DecodeLastRune(d)
		first := []rune(norm.NFC.String(string(d[:len(d)-n])))
		pairs[[2]rune{first[0], last}] = r
	}
	return pairs
})

func compose(a, b rune) (rune, bool) {
	switch {
	case a >= hangulL && a < hangulL+hangulLs && b >= hangulV && b < hangulV+hangulVs:
		return hangulS + ((a-hangulL)*hangulVs+(b-hangulV))*hangulTs, true
	case a >= hangulS && a < hangulS+hangulLs*hangulVs*hangulTs && (a-hangulS)%hangulTs == 0 && b > hangulT && b < hangulT+hangulTs:
		return a + b - hangulT, true
	}
	r, ok := compositions()[[2]rune{a, b}]
	return r, ok
}

// nfc returns s in Unicode Normalization Form C as Hugging Face computes it, and its mask: a character is Ordinary if
// anything that it was made of is. Bytes that are not UTF-8 stay as they are.
func nfc(s string, mask []bool) (string, []bool) {
	if norm.NFC.QuickSpanString(s) == len(s) {
		return s, mask
	}
	type char struct {
		r        rune
		class    uint8
		ordinary bool
		raw      bool // r is a byte that is no UTF-8
	}
	chars := make([]char, 0, len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		c := char{r: r, ordinary: mask != nil && mask[i]}
		if r == utf8.RuneError && n == 1 {
			c.r, c.raw = rune(s[i]), true
			chars = append(chars, c)
			i++
			continue
		}
		i += n
		class, d := canonical(r)
		if d == nil {
			c.class = class
			chars = append(chars, c)
			continue
		}
		for _, q := range string(d) {
			c.r = q
			c.class, _ = canonical(q)
			chars = append(chars, c)
		}
	}
	// Canonical ordering: stable by class within each run of marks.
	for i := 0; i < len(chars); {
		j := i
		for j < len(chars) && chars[j].class != 0 {
			j++
		}
		stableByClass(chars[i:j], func(c char) uint8 { return c.class })
		i = max(j, i+1)
	}
	out := chars[:0]
	starter := -1
	for _, c := range chars {
		if starter >= 0 && !c.raw {
			last := out[len(out)-1]
			if len(out)-1 == starter || last.class != 0 && last.class < c.class {
				if r, ok := compose(out[starter].r, c.r); ok {
					out[starter].r = r
					out[starter].ordinary = out[starter].ordinary || c.ordinary
					continue
				}
			}
		}
		out = append(out, c)
		switch {
		case c.raw:
			starter = -1
		case c.class == 0:
			starter = len(out) - 1
		}
	}
	b := make([]byte, 0, len(s))
	var m []bool
	for _, c := range out {
		n := len(b)
		if c.raw {
			b = append(b, byte(c.r))
		} else {
			b = utf8.AppendRune(b, c.r)
		}
		for range len(b) - n {
			if mask != nil {
				m = append(m, c.ordinary)
			}
		}
	}
	return string(b), m
}

// stableByClass sorts s by class, keeping the order of equals: by counting, so that a long run of marks is not slow.
func stableByClass[C any](s []C, class func(C) uint8) {
	sorted := true
	var count [257]int
	for i, c := range s {
		count[int(class(c))+1]++
		sorted = sorted && (i == 0 || class(s[i-1]) <= class(c))
	}
	if sorted {
		return
	}
	for i := 1; i < len(count); i++ {
		count[i] += count[i-1]
	}
	out := make([]C, len(s))
	for _, c := range s {
		out[count[class(c)]] = c
		count[class(c)]++
	}
	copy(s, out)
}
