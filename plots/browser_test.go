package plots

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/soarbook/soarbook/rollout"
)

// browser is a session of chromedriver (https://www.w3.org/TR/webdriver2/) with a window 800 pixels wide.
type browser struct {
	t   *testing.T
	url string
	dir string // where pages and pictures are kept: SOARBOOK_ARTIFACTS, or what go test -artifacts keeps
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no browser")
	}
	var paths []string
	for _, name := range []string{"chromedriver", "chromium"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%v: install Chromium and its chromedriver", err)
		}
		paths = append(paths, path)
	}
	b := &browser{t: t, dir: os.Getenv("SOARBOOK_ARTIFACTS")}
	if b.dir == "" {
		b.dir = t.ArtifactDir()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	driver := exec.Command(paths[0], fmt.Sprint("--port=", port))
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Process.Kill(); driver.Wait() })
	b.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	for end := time.Now().Add(30 * time.Second); b.try("GET", "/status", nil, nil) != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("chromedriver does not answer")
		}
	}
	var session struct {
		SessionID string `json:"sessionId"`
	}
	b.call("POST", "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{"goog:chromeOptions": map[string]any{
		"binary": paths[1], "args": []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=800,1000"}}}}}, &session)
	b.url += "/session/" + session.SessionID
	t.Cleanup(func() { b.try("DELETE", "", nil, nil) })
	return b
}

func (b *browser) call(method, path string, body, value any) {
	b.t.Helper()
	if err := b.try(method, path, body, value); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) try(method, path string, body, value any) error {
	var data io.Reader
	if method == "POST" {
		if body == nil {
			body = map[string]any{}
		}
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		data = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, b.url+path, data)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("webdriver %s %s: %s: %.500s", method, path, resp.Status, text)
	}
	var r struct{ Value json.RawMessage }
	if err := json.Unmarshal(text, &r); err != nil || value == nil {
		return err
	}
	return json.Unmarshal(r.Value, value)
}

func js[T any](b *browser, script string, args ...any) T {
	b.t.Helper()
	if args == nil {
		args = []any{}
	}
	var v T
	b.call("POST", "/execute/sync", map[string]any{"script": script, "args": args}, &v)
	return v
}

// open writes the page to a file, as nbconvert would in a theme of JupyterLab, and opens it from there.
func (b *browser) open(name, theme, html string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name+".html")
	body := `<body data-jp-theme-light="` + fmt.Sprint(theme == "light") + `" style="margin:8px;background:` + map[string]string{"light": "#fff", "dark": "#111"}[theme] + `">`
	if theme == "" { // a page that leaves the theme to the reader's system
		body = "<body>"
	}
	if err := os.WriteFile(path, []byte("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>"+name+"</title>"+body+html+"</body></html>"), 0o644); err != nil {
		b.t.Fatal(err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		b.t.Fatal(err)
	}
	b.call("POST", "/url", map[string]string{"url": "file://" + abs}, nil)
}

// shot keeps a picture of all of the page.
func (b *browser) shot(name string) {
	b.t.Helper()
	height := js[int](b, `return document.documentElement.scrollHeight`)
	b.call("POST", "/window/rect", map[string]int{"width": 800, "height": min(max(height+160, 300), 4000)}, nil)
	var data string
	b.call("GET", "/screenshot", nil, &data)
	png, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// element returns the WebDriver reference of the first element that a selector names.
func (b *browser) element(selector string) string {
	b.t.Helper()
	var e map[string]string
	b.call("POST", "/element", map[string]string{"using": "css selector", "value": selector}, &e)
	for _, id := range e {
		return id
	}
	b.t.Fatalf("no element %s", selector)
	return ""
}

func (b *browser) hover(selector string) {
	b.t.Helper()
	origin := map[string]string{"element-6066-11e4-a52e-4f735466cecf": b.element(selector)}
	b.call("POST", "/actions", map[string]any{"actions": []any{map[string]any{"type": "pointer", "id": "mouse",
		"actions": []any{map[string]any{"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": origin}}}}}, nil)
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.call("POST", "/element/"+b.element(selector)+"/click", nil, nil)
}

// long is a word without a place to break.
var long = strings.Repeat("abcdefghij", 60)

// TestBrowser opens every view in Chromium, in both themes, 800 pixels wide: nothing overflows, all of it is readable, and texts
// with no place to break do not push anything out. Pictures are kept.
func TestBrowser(t *testing.T) {
	b := openBrowser(t)
	for _, v := range views {
		page := v.make(t, "").HTML
		for _, theme := range []string{"light", "dark"} {
			b.open(v.name+"-"+theme, theme, page)
			b.fits(v.name)
			want := map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(17, 17, 17)"}[theme]
			if got := js[string](b, `return getComputedStyle(document.querySelector('.soarbook')).backgroundColor`); got != want {
				t.Errorf("%s, %s theme: background %s, want %s", v.name, theme, got, want)
			}
			b.shot(v.name + "-" + theme)
		}
		b.open(v.name+"-long", "light", v.make(t, " "+long).HTML)
		js[any](b, `document.querySelectorAll('details').forEach(d => d.open = true); return null`)
		b.fits(v.name + ", long words")
	}
}

// fits checks that no element but what scrolls by itself is wider than the page.
func (b *browser) fits(name string) {
	b.t.Helper()
	wide := js[[]string](b, `const w = document.documentElement.clientWidth, out = [];
		if (document.documentElement.scrollWidth > w) out.push('the page scrolls: ' + document.documentElement.scrollWidth);
		document.querySelectorAll('.soarbook, .soarbook *').forEach(e => {
			if (e.closest('svg') && e.tagName !== 'svg' || e.closest('.sb-scroll') && !e.classList.contains('sb-scroll')) return;
			const r = e.getBoundingClientRect();
			if (r.right > w + 0.5 || r.left < -0.5) out.push(e.tagName + '.' + e.getAttribute('class') + ' ' + r.left + '–' + r.right);
		});
		return out.slice(0, 5)`)
	if len(wide) > 0 {
		b.t.Errorf("%s: wider than the page: %q", name, wide)
	}
}

// TestSystemTheme: without a page's word the reader's system decides.
func TestSystemTheme(t *testing.T) {
	b := openBrowser(t)
	page := must(t)(Reward(decomposition())).HTML
	for scheme, want := range map[string]string{"dark": "rgb(17, 17, 17)", "light": "rgb(255, 255, 255)"} {
		b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Emulation.setEmulatedMedia", "params": map[string]any{"features": []any{map[string]string{"name": "prefers-color-scheme", "value": scheme}}}}, nil)
		b.open("system-"+scheme, "", page)
		if got := js[string](b, `return getComputedStyle(document.querySelector('.soarbook')).backgroundColor`); got != want {
			t.Errorf("system theme %s: background %s, want %s", scheme, got, want)
		}
		b.open("system-"+scheme+"-page-light", "light", page)
		if got := js[string](b, `return getComputedStyle(document.querySelector('.soarbook')).backgroundColor`); got != "rgb(255, 255, 255)" {
			t.Errorf("a light page under a %s system: background %s, want white", scheme, got)
		}
	}
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Emulation.setEmulatedMedia", "params": map[string]any{"media": "print", "features": []any{map[string]string{"name": "prefers-color-scheme", "value": "dark"}}}}, nil)
	tr, tokens := searchEpisode(t, rollout.Chat, question, passage, "London")
	b.open("print", "dark", must(t)(Trajectory(tr, tokens)).HTML)
	if got := js[string](b, `return getComputedStyle(document.querySelector('.soarbook')).backgroundColor`); got != "rgb(255, 255, 255)" {
		t.Errorf("in print: background %s, want white", got)
	}
	if h := js[float64](b, `return document.querySelector('details:not([open]) .sb-text').getBoundingClientRect().height`); h < 20 {
		t.Errorf("in print a folded turn is %v pixels high, want all of it", h)
	}
}

func TestHoverAndFold(t *testing.T) {
	b := openBrowser(t)
	tr, tokens := searchEpisode(t, rollout.Chat, question, passage, "London")
	for _, theme := range []string{"light", "dark"} {
		b.open("hover-"+theme, theme, must(t)(Trajectory(tr, tokens)).HTML)
		b.hover("details[open] .t:nth-child(3)")
		tip := js[string](b, `return getComputedStyle(document.querySelector('details[open] .t:nth-child(3)'), '::after').content`)
		for _, want := range []string{"policy token 170", "id 1002", "log p -0.375", "log p ref -0.500", "advantage -0.500", "loss yes"} {
			if !strings.Contains(tip, want) {
				t.Errorf("hovering shows %s, which lacks %q", tip, want)
			}
		}
		b.fits("hovering")
		b.shot("hover-" + theme)
	}
	folded := func() bool {
		return js[bool](b, `return document.querySelector('details').open`)
	}
	if folded() {
		t.Error("the prompt is unfolded at first")
	}
	js[any](b, `document.querySelector('summary').focus(); return null`)
	b.call("POST", "/actions", map[string]any{"actions": []any{map[string]any{"type": "key", "id": "k", "actions": []any{map[string]string{"type": "keyDown", "value": "\ue007"}, map[string]string{"type": "keyUp", "value": "\ue007"}}}}}, nil)
	if !folded() {
		t.Error("the Enter key does not unfold the prompt")
	}
}

func TestSort(t *testing.T) {
	b := openBrowser(t)
	q, members := group(t, "Paris")
	page := must(t)(Group(q, members)).HTML
	b.open("sort", "light", page+page) // two of them do not get into each other's way
	column := `return [...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.cells[0].textContent).join(' ')`
	reward := "table th:nth-child(3) button"
	b.click(reward)
	if got := js[string](b, column); got != "1 2 3 4" {
		t.Errorf("by falling reward: %s, want 1 2 3 4, the unknown one last", got)
	}
	b.click(reward)
	if got := js[string](b, column); got != "3 2 1 4" {
		t.Errorf("by rising reward: %s, want 3 2 1 4, the unknown one last", got)
	}
	if got := js[string](b, `return document.querySelectorAll('table th')[2].getAttribute('aria-sort')`); got != "ascending" {
		t.Errorf("aria-sort: got %q, want ascending", got)
	}
	if n := js[int](b, `return document.querySelectorAll('table')[0].querySelectorAll('button').length`); n != 9 {
		t.Errorf("%d buttons, want one for each column", n)
	}
}

// busy returns how much processor time the page's thread has used for tasks.
func (b *browser) busy() time.Duration {
	b.t.Helper()
	var r struct {
		Metrics []struct {
			Name  string
			Value float64 // seconds
		}
	}
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Performance.getMetrics", "params": map[string]any{}}, &r)
	for _, m := range r.Metrics {
		if m.Name == "TaskDuration" {
			return time.Duration(m.Value * float64(time.Second)).Round(time.Millisecond)
		}
	}
	b.t.Fatalf("Chromium reports no TaskDuration: %v", r.Metrics)
	return 0
}

// TestTwoThousand: a run of 2,000 trajectories opens in under two seconds, pages, and finds.
func TestTwoThousand(t *testing.T) {
	const n = 2000
	members := many(t, n, strings.Repeat(" A passage goes on for a while, as real ones do.", 20))
	begun := time.Now()
	p := must(t)(Trajectories("Two thousand", members))
	t.Logf("built in %v: %.1f MB", time.Since(begun).Round(time.Millisecond), float64(len(p.HTML))/1e6)
	if len(p.HTML) < 2_000_000 {
		t.Fatalf("the page has %d bytes; that is no large run", len(p.HTML))
	}
	b := openBrowser(t)
	// The limit is on the processor time of the page's thread: on a machine that does other things at the same time the clock on the wall
	// measures those.
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Performance.enable", "params": map[string]string{"timeDomain": "threadTicks"}}, nil)
	begun = time.Now()
	b.open("two-thousand", "light", p.HTML)
	if got := js[string](b, `return document.querySelector('[role=status]').textContent`); got != "1–25 of 2000" {
		t.Errorf("the page shows %q, want 1–25 of 2000", got)
	}
	loaded := js[float64](b, `return performance.getEntriesByType('navigation')[0].loadEventEnd`)
	opened := b.busy()
	t.Logf("opened in %v of processor time, %.0f ms on the wall (%v with the driver)", opened, loaded, time.Since(begun).Round(time.Millisecond))
	if opened <= 0 || opened > 2*time.Second {
		t.Errorf("the page took %v of processor time to open, want under 2 s", opened)
	}
	if got := js[int](b, `return document.querySelectorAll('.sb-item').length`); got != pageSize {
		t.Errorf("%d trajectories in the document, want %d", got, pageSize)
	}
	b.click(".sb-controls button:last-child")
	if got := js[string](b, `return document.querySelector('.sb-item summary').textContent`); !strings.HasPrefix(got, "26. ") {
		t.Errorf("the second page begins with %.20q, want 26", got)
	}
	b.click(".sb-item summary")
	if got := js[int](b, `return document.querySelectorAll('.sb-item details[open] .sb-run').length`); got < 3 {
		t.Errorf("an unfolded trajectory shows %d stretches, want its turns", got)
	}
	b.shot("two-thousand")
	before := b.busy()
	shown := js[string](b, `const s = document.querySelector('.sb-controls input'); s.value = 'sample 1234)'; s.dispatchEvent(new Event('input'));
		return document.querySelector('[role=status]').textContent + ' ' + document.querySelector('.sb-item summary').textContent`)
	if !strings.HasPrefix(shown, "1–1 of 1 1235. ") {
		t.Errorf("searching for one trajectory shows %.40q", shown)
	}
	if d := b.busy() - before; d > 500*time.Millisecond {
		t.Errorf("searching took %v of processor time, want under 0.5 s", d)
	}
	order := js[string](b, `const s = document.querySelector('.sb-controls input'), o = document.querySelector('.sb-controls select'); s.value = ''; o.selectedIndex = 1;
		o.dispatchEvent(new Event('change')); return document.querySelector('.sb-item summary').textContent`)
	if !strings.HasPrefix(order, "6. reward 1 ") {
		t.Errorf("by highest reward the first is %.20q, want trajectory 6", order)
	}
}

// TestListWithoutScripts: the page that the browser builds is the page that is there without scripts.
func TestListWithoutScripts(t *testing.T) {
	b := openBrowser(t)
	page := must(t)(Trajectories("List", many(t, 25, " <b>&amp;\u202e</b>"))).HTML
	text := func(html string) string {
		b.open("list", "light", html)
		js[any](b, `document.querySelectorAll('.sb-list details').forEach(d => d.open = true); return null`)
		return js[string](b, `return new Promise(done => setTimeout(() => done([...document.querySelectorAll('.sb-item')].map(e => e.innerHTML).join('\n').replaceAll(' open=""', '')), 100))`)
	}
	with, without := text(page), text(strings.Replace(page, asset("pages.js"), "", 1))
	if with == "" || with != without {
		t.Errorf("with scripts the list is\n%.600s\nwithout\n%.600s", with, without)
	}
}

// TestHostileTextInBrowser: what the XML reader of [TestTextStaysInItsElement] says of the tree, Chromium's HTML parser says too, and
// no text runs.
func TestHostileTextInBrowser(t *testing.T) {
	b := openBrowser(t)
	hostile := strings.Join(hostiles, " ")
	tree := `return [...document.body.querySelectorAll('*')].map(e => e.tagName + '.' + (e.getAttribute('class') || '') + ':' + e.getAttributeNames().join()).join('\n')`
	for name, view := range shaped {
		b.open("harmless", "light", view(t, harmless(hostile)).HTML)
		want := js[string](b, tree)
		b.open("hostile", "light", view(t, hostile).HTML) // an alert would fail the next call
		if got := js[string](b, tree); got != want {
			t.Errorf("%s: a hostile text changes the tree from\n%.800s\nto\n%.800s", name, want, got)
		}
	}
	b.open("hostile", "light", shaped["trajectory"](t, hostile).HTML)
	b.shot("hostile")
}
