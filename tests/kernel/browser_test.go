package kernel

import (
	"bytes"
	"context"
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
	"syscall"
	"testing"
	"time"

	"github.com/soarbook/soarbook/kernel/wire/wiretest"
)

// browser is a session of chromedriver (https://www.w3.org/TR/webdriver2/).
type browser struct {
	t   *testing.T
	url string
}

// call does one WebDriver command and decodes its value.
func (b *browser) call(method, path string, body, value any) {
	b.t.Helper()
	if err := b.try(method, path, body, value); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) try(method, path string, body, value any) error {
	if body == nil {
		body = map[string]any{}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, b.url+path, bytes.NewReader(data))
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
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(r.Value, value)
}

// js runs a script in the page; promises are waited for.
func js[T any](b *browser, script string, args ...any) T {
	b.t.Helper()
	if args == nil {
		args = []any{}
	}
	var v T
	b.call("POST", "/execute/sync", map[string]any{"script": script, "args": args}, &v)
	return v
}

// until waits for a script to return true.
func (b *browser) until(what, script string, args ...any) {
	b.t.Helper()
	for end := time.Now().Add(90 * time.Second); !js[bool](b, script, args...); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.shot("failed")
			b.t.Fatalf("the page never shows %s; its outputs: %q", what, js[[]string](b, outputs))
		}
	}
}

const outputs = `return [...document.querySelectorAll('.jp-CodeCell')].map(c => [...c.querySelectorAll('.jp-OutputArea-output')].map(o => o.innerText).join('\n'))`

// shows waits until the output of a cell contains text.
func (b *browser) shows(cell int, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%q in cell %d", text, cell+1), `const c = document.querySelectorAll('.jp-CodeCell')[arguments[0]];
		return !!c && [...c.querySelectorAll('.jp-OutputArea-output')].some(o => o.innerText.includes(arguments[1]))`, cell, text)
}

func (b *browser) command(id string) {
	b.t.Helper()
	js[any](b, `jupyterapp.commands.execute(arguments[0]); return null`, id)
}

// keys types into what has the focus.
func (b *browser) keys(keys ...string) {
	b.t.Helper()
	var actions []map[string]string
	for _, k := range keys {
		actions = append(actions, map[string]string{"type": "keyDown", "value": k}, map[string]string{"type": "keyUp", "value": k})
	}
	b.call("POST", "/actions", map[string]any{"actions": []any{map[string]any{"type": "key", "id": "k", "actions": actions}}}, nil)
}

// artifacts is where pictures and logs are kept: SOARBOOK_ARTIFACTS, or what go test -artifacts keeps.
func artifacts(t *testing.T) string {
	if dir := os.Getenv("SOARBOOK_ARTIFACTS"); dir != "" {
		return dir
	}
	return t.ArtifactDir()
}

// shot keeps a picture of the page.
func (b *browser) shot(name string) {
	b.t.Helper()
	var data string
	b.call("GET", "/screenshot", nil, &data)
	png, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(artifacts(b.t), name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// serve starts a program and waits until it answers HTTP.
func serve(t *testing.T, cmd *exec.Cmd, url string) {
	t.Helper()
	log, err := os.Create(filepath.Join(artifacts(t), filepath.Base(cmd.Path)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
	})
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(end) {
			b, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not answer: %s", cmd, b)
		}
	}
}

func port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestBrowser works in JupyterLab as a person does: run all, look, stop a loop, complete, move a slider, restart.
func TestBrowser(t *testing.T) {
	py := python(t, "jupyterlab")
	driver, err := exec.LookPath("chromedriver")
	if err != nil {
		t.Skipf("%v: install Chromium and its chromedriver", err)
	}
	dir := t.TempDir()
	var cells []map[string]any
	for i, source := range []string{
		"x := 41",
		"x++\nx",
		"import \"github.com/soarbook/soarbook/kernel/display\"\ndisplay.SVG(`<svg xmlns=\"http://www.w3.org/2000/svg\" id=\"drawn\" width=\"80\" height=\"30\"><circle cx=\"15\" cy=\"15\" r=\"14\" fill=\"teal\"/></svg>`)",
		"import (\n\t\"github.com/janpfeifer/gonb/gonbui\"\n\t\"github.com/janpfeifer/gonb/gonbui/widgets\"\n)\nfor i := range 20 {\n\tgonbui.UpdateHTML(\"bar\", fmt.Sprintf(`<progress id=\"bar\" max=\"19\" value=\"%d\"></progress>`, i))\n\ttime.Sleep(100 * time.Millisecond)\n}",
		"fmt.Println(\"spinning\")\nfor {\n}",
		"x",
		"slider := widgets.Slider(0, 100, 50).Done()\nmoved := slider.Listen()\nfmt.Println(\"ready\")\nfmt.Println(\"moved to\", <-moved.C)",
		"strings.TrimSu",
	} {
		cells = append(cells, map[string]any{"cell_type": "code", "id": fmt.Sprint("c", i), "source": source, "metadata": map[string]any{}, "outputs": []any{}, "execution_count": nil})
	}
	nb, err := json.Marshal(map[string]any{"nbformat": 4, "nbformat_minor": 5, "cells": cells,
		"metadata": map[string]any{"kernelspec": map[string]string{"name": "soarbook", "display_name": "Go (soarbook)", "language": "go"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nb.ipynb"), nb, 0o644); err != nil {
		t.Fatal(err)
	}

	labPort, driverPort, token := port(t), port(t), wiretest.ID()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	t.Cleanup(cancel)
	lab := exec.CommandContext(ctx, py, "-m", "jupyterlab", "--no-browser", "--allow-root", fmt.Sprint("--ServerApp.port=", labPort), "--ServerApp.port_retries=0",
		"--ServerApp.root_dir="+dir, "--IdentityProvider.token="+token, "--LabApp.expose_app_in_browser=True")
	lab.Dir, lab.Env = dir, append(install(t, py), "JUPYTERLAB_SETTINGS_DIR="+filepath.Join(dir, ".settings"), "JUPYTERLAB_WORKSPACES_DIR="+filepath.Join(dir, ".workspaces"))
	base := fmt.Sprintf("http://127.0.0.1:%d", labPort)
	serve(t, lab, base+"/api")
	serve(t, exec.CommandContext(ctx, driver, fmt.Sprint("--port=", driverPort)), fmt.Sprintf("http://127.0.0.1:%d/status", driverPort))

	b := &browser{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", driverPort)}
	var session struct {
		SessionID string `json:"sessionId"`
	}
	options := map[string]any{"args": []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,1600"}}
	if chromium, err := exec.LookPath("chromium"); err == nil {
		options["binary"] = chromium
	}
	b.call("POST", "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{"goog:chromeOptions": options}}}, &session)
	b.url += "/session/" + session.SessionID
	t.Cleanup(func() { b.try("DELETE", "", nil, nil) })

	b.call("POST", "/url", map[string]string{"url": base + "/lab/tree/nb.ipynb?token=" + token}, nil)
	b.until("the notebook", `return document.querySelectorAll('.jp-CodeCell').length === 8`)
	b.until("an idle kernel", `return jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'`)

	// Run all: the hot loop stops the queue.
	b.command("notebook:run-all-cells")
	b.shows(1, "42")
	b.until("the drawing", `const i = document.querySelector('.jp-RenderedSVG img'); return !!document.querySelector('svg#drawn circle') || !!i && i.naturalWidth === 80`)
	seen := map[string]bool{}
	for end := time.Now().Add(30 * time.Second); len(seen) < 4 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if v := js[string](b, `return String(document.querySelector('progress#bar')?.value ?? '')`); v != "" {
			seen[v] = true
		}
	}
	if len(seen) < 4 {
		t.Errorf("the progress bar shows only %v", seen)
	}
	if n := js[int](b, `return document.querySelectorAll('progress').length`); n != 1 {
		t.Errorf("%d progress bars, want one that moves", n)
	}
	b.shows(4, "spinning")
	b.shot("running")
	begun := time.Now()
	b.command("notebook:interrupt-kernel")
	b.shows(4, "Interrupted")
	if d := time.Since(begun); d > 2*time.Second {
		t.Errorf("the stop button took %v", d)
	}
	b.shot("stopped")

	// The state is still there.
	focus := func(cell int) {
		t.Helper()
		js[any](b, `const p = jupyterapp.shell.currentWidget.content; p.activeCellIndex = arguments[0]; p.mode = 'edit'; p.activeCell.editor.focus();
			const e = p.activeCell.editor; const last = e.lineCount - 1; e.setCursorPosition({line: last, column: (e.getLine(last) || '').length}); return null`, cell)
	}
	focus(5)
	b.command("notebook:run-cell")
	b.shows(5, "42")

	// A slider of gonbui, over a comm.
	focus(6)
	b.command("notebook:run-cell")
	b.shows(6, "ready")
	js[any](b, `const s = document.querySelector('input[type=range]'); s.value = 77; s.dispatchEvent(new Event('input')); return null`)
	b.shows(6, "moved to 77")

	focus(7)
	b.keys("\uE004") // Tab
	b.until("the completion", `return jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.source === 'strings.TrimSuffix' ||
		[...document.querySelectorAll('.jp-Completer-item, .jp-Completer code')].some(e => e.innerText.includes('TrimSuffix'))`)
	b.shot("completion")
	b.keys("\uE00C") // Escape

	b.command("notebook:restart-kernel")
	b.until("the question", `return !!document.querySelector('.jp-Dialog .jp-mod-accept')`)
	js[any](b, `document.querySelector('.jp-Dialog .jp-mod-accept').click(); return null`)
	b.until("an idle kernel", `return jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle' && !document.querySelector('.jp-Dialog')`)
	focus(5)
	b.command("notebook:run-cell")
	b.shows(5, "undefined: x")
	b.shot("restarted")
	if saved := js[string](b, `return JSON.stringify(jupyterapp.shell.currentWidget.model.toJSON())`); strings.Contains(saved, "gonb_comm") {
		t.Error("the script of the widgets stays in the notebook")
	}
}
