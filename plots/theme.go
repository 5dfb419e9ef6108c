package plots

import (
	"embed"
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// colour is a custom property of the views' style sheet in both themes.
type colour struct {
	name        string
	light, dark string // #rrggbb
	on          string // the property of the background on which it stands; "" for a background
	contrast    float64
}

// Contrast ratios of WCAG 2.2: text (1.4.3) and strokes that carry meaning (1.4.11).
const (
	textContrast   = 4.5
	strokeContrast = 3
)

// palette holds every colour of the views. Hues are Okabe and Ito's, their lightness moved until they stand out from the theme's
// page; what one of them says is said once more by a word, a dash or an underline. The pages are those of JupyterLab's two themes.
var palette = []colour{
	{"bg", "#ffffff", "#111111", "", 0},
	{"soft", "#f1f1f1", "#202020", "", 0},
	{"fg", "#1a1a1a", "#ececec", "bg", textContrast},
	{"muted", "#555555", "#b4b4b4", "soft", textContrast},
	{"line", "#8a8a8a", "#7c7c7c", "bg", strokeContrast},
	{"good", "#00694c", "#3fd0a5", "soft", textContrast},
	{"bad", "#a84300", "#ff9a5c", "soft", textContrast},

	{"t-prompt", "#ebebeb", "#2c2c2c", "", 0},
	{"t-policy", "#d4e9f8", "#0b3a59", "", 0},
	{"t-recall", "#f5ddea", "#4d2540", "", 0},
	{"t-observation", "#cfeee3", "#0c4232", "", 0},
	{"t-correction", "#fbdcc9", "#59260a", "", 0},
	{"t-mark", "#ffe9a8", "#574300", "", 0},
	{"u-prompt", "#767676", "#9a9a9a", "t-prompt", strokeContrast},
	{"u-policy", "#0072b2", "#56b4e9", "t-policy", strokeContrast},
	{"u-recall", "#a8447f", "#e39cc6", "t-recall", strokeContrast},
	{"u-observation", "#00795a", "#2fc498", "t-observation", strokeContrast},
	{"u-correction", "#c05000", "#ff8a45", "t-correction", strokeContrast},
	{"u-mark", "#8a6400", "#e69f00", "t-mark", strokeContrast},

	{"s0", "#0072b2", "#56b4e9", "bg", strokeContrast},
	{"s1", "#d55e00", "#ff8a45", "bg", strokeContrast},
	{"s2", "#008e68", "#2fc498", "bg", strokeContrast},
	{"s3", "#b5548c", "#e39cc6", "bg", strokeContrast},
	{"s4", "#9c6d00", "#e69f00", "bg", strokeContrast},
	{"s5", "#555555", "#b4b4b4", "bg", strokeContrast},
}

// seriesColours is how many arms of a chart have a colour of their own; more differ by dash and label only.
const seriesColours = 6

//go:embed html
var files embed.FS

func asset(name string) string {
	b, err := files.ReadFile("html/" + name)
	if err != nil {
		panic(fmt.Sprintf("plots: %v", err)) // embedded: cannot be missing
	}
	return string(b)
}

// styleSheet is the one style sheet of all views. Its rules name nothing outside of an element of class soarbook. A page's own
// choice of theme (JupyterLab's, nbconvert's, VS Code's) goes before the reader's system.
var styleSheet = func() string {
	var light, dark strings.Builder
	for _, c := range palette {
		fmt.Fprintf(&light, "--sb-%s:%s;", c.name, c.light)
		fmt.Fprintf(&dark, "--sb-%s:%s;", c.name, c.dark)
	}
	var b strings.Builder
	fmt.Fprintf(&b, ".soarbook{%scolor-scheme:light}\n", &light)
	fmt.Fprintf(&b, "@media (prefers-color-scheme:dark){body:not([data-jp-theme-light]):not(.vscode-light) .soarbook{%scolor-scheme:dark}}\n", &dark)
	fmt.Fprintf(&b, "[data-jp-theme-light=\"false\"] .soarbook,.vscode-dark .soarbook{%scolor-scheme:dark}\n", &dark)
	fmt.Fprintf(&b, "@media print{body .soarbook.soarbook.soarbook{%scolor-scheme:light}}\n", &light)
	b.WriteString(asset("views.css"))
	return b.String()
}()

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"visible": visible,
	"style":   func() template.HTML { return template.HTML("<style>\n" + styleSheet + "</style>") },
	"script":  func(name string) template.HTML { return template.HTML("<script>\n" + asset(name) + "</script>") },
	"number":  number,
	"signed":  func(v float64) string { return signed(v, 3) },
	"inc":     func(i int) int { return i + 1 },
}).ParseFS(files, "html/*.tmpl"))

// page fills a template.
func page(name string, view any, text string) Page {
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, name, view); err != nil {
		// The templates are part of the program and read plain fields: only a mistake in one can fail.
		panic(fmt.Sprintf("plots: template %s: %v", name, err))
	}
	return Page{HTML: strings.TrimSpace(b.String()) + "\n", Text: text}
}

// visible returns s as it is shown: characters that would show nothing, or move other text, by what names them. Control characters
// become their pictures (U+2400…), marks of writing direction and spaces of no width an escape, bytes that are not UTF-8 \x and
// two digits. Line breaks and tabs stay.
func visible(s string) string {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] < 0x7F || s[i] == '\n' || s[i] == '\t'
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02X`, s[i])
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < ' ':
			b.WriteRune(0x2400 + r)
		case r == 0x7F:
			b.WriteRune(0x2421)
		case invisible(r):
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

// invisible reports what moves other text or shows nothing. The joiners U+200C and U+200D stay: scripts and emoji need them.
func invisible(r rune) bool {
	switch {
	case 0x80 <= r && r <= 0x9F, r == 0x61C, r == 0xAD, r == 0x180E, r == 0x200B, r == 0x200E, r == 0x200F, 0x2028 <= r && r <= 0x202E,
		0x2060 <= r && r <= 0x206F, r == 0xFEFF, 0xFFF9 <= r && r <= 0xFFFB, r == 0xFFFE, r == 0xFFFF, 0xE0000 <= r && r <= 0xE007F:
		return true
	}
	return false
}

// number prints v with at most 4 significant digits; "unknown" where it is NaN.
func number(v float64) string {
	if math.IsNaN(v) {
		return "unknown"
	}
	if a := math.Abs(v); a >= 1e4 && a < 1e15 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// signed prints v with its sign and so many decimals; "unknown" where it is NaN.
func signed(v float64, decimals int) string {
	if math.IsNaN(v) {
		return "unknown"
	}
	return fmt.Sprintf("%+.*f", decimals, v)
}

// indent sets a text in, a trailing line break apart.
func indent(b *strings.Builder, by, s string) {
	fmt.Fprintf(b, "%s%s\n", by, strings.ReplaceAll(strings.TrimRight(visible(s), "\n"), "\n", "\n"+by))
}
