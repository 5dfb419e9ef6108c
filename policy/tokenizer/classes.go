package tokenizer

import "sync"

// charClass is what the split patterns ask of a character.
type charClass uint8

const (
	other  charClass = iota // none of those below: punctuation, symbols, marks, controls, unassigned
	letter                  // \p{L}
	number                  // \p{N}
	space                   // \s, which is White_Space
)

// whiteSpace are the ranges of the Unicode property White_Space.
var whiteSpace = [][2]rune{
	{0x9, 0xd}, {0x20, 0x20}, {0x85, 0x85}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
	{0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
}

// classes returns the class of every code point, from the tables of Hugging Face's regular expressions (Oniguruma,
// Unicode 16) and not from Go's (Unicode 15), which lack 4,924 letters and 80 numbers.
var classes = sync.OnceValue(func() *[0x110000]charClass {
	var t [0x110000]charClass
	fill(t[:], letters, letter)
	fill(t[:], numbers, number)
	fill(t[:], whiteSpace, space)
	return &t
})

var asciiClasses = func() (t [128]charClass) {
	for c := range t {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			t[c] = letter
		case c >= '0' && c <= '9':
			t[c] = number
		case c >= 0x9 && c <= 0xd || c == ' ':
			t[c] = space
		}
	}
	return t
}()

func fill(t []charClass, ranges [][2]rune, c charClass) {
	for _, r := range ranges {
		for x := r[0]; x <= r[1]; x++ {
			t[x] = c
		}
	}
}
