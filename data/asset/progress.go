package asset

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// meter shows how far a download is: a bar on a terminal, elsewhere a line at the start, at every tenth but no more
// than one every two seconds, and at the end.
type meter struct {
	bar   *progressbar.ProgressBar
	w     io.Writer
	label string
	n     int64 // bytes so far
	start int64 // bytes that an earlier download left
	total int64 // bytes, -1 if unknown
	begun time.Time
	last  time.Time
	tenth int64
}

func newMeter(w io.Writer, label string, offset, total int64) *meter {
	m := &meter{w: w, label: label, n: offset, start: offset, total: total, begun: time.Now()}
	m.last = m.begun
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		m.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(label), progressbar.OptionShowBytes(true),
			progressbar.OptionFullWidth(), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }))
		// An error of the bar is one of the terminal; the download goes on without it.
		_ = m.bar.Set64(offset)
		return m
	}
	if offset > 0 {
		fmt.Fprintf(w, "%s: downloading, from %s of %s on\n", label, bytesText(offset), bytesText(total))
	} else {
		fmt.Fprintf(w, "%s: downloading %s\n", label, bytesText(total))
	}
	if total > 0 {
		m.tenth = offset * 10 / total
	}
	return m
}

func (m *meter) add(n int) {
	m.n += int64(n)
	if m.bar != nil {
		_ = m.bar.Add(n)
		return
	}
	now := time.Now()
	if m.total <= 0 || now.Sub(m.last) < 2*time.Second {
		return
	}
	if t := m.n * 10 / m.total; t > m.tenth {
		m.tenth, m.last = t, now
		fmt.Fprintf(m.w, "%s: %d %%, %s\n", m.label, m.n*100/m.total, m.rate(now))
	}
}

func (m *meter) rate(now time.Time) string {
	return bytesText(int64(float64(m.n-m.start)/max(now.Sub(m.begun).Seconds(), 1e-3))) + "/s"
}

func (m *meter) done() {
	if m.bar != nil {
		if m.total < 0 || m.n < m.total {
			_ = m.bar.Exit() // leaves the line where it broke
		}
		return
	}
	fmt.Fprintf(m.w, "%s: %s, %s\n", m.label, bytesText(m.n), m.rate(time.Now()))
}

// bytesText writes a number of bytes in decimal units, as download pages do.
func bytesText(n int64) string {
	switch {
	case n < 0:
		return "an unknown size"
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	default:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
}
