package kernel

import (
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/janpfeifer/gonb/gonbui/protocol"
	"github.com/soarbook/soarbook/kernel/eval"
	"github.com/soarbook/soarbook/kernel/wire"
)

// Addresses of GoNB's protocol over a comm (docs/FrontEndCommunication.md there).
const (
	commTarget    = "gonb_comm"
	addressOpened = "#comm_open_ack"
	addressPing   = "#heartbeat/ping"
	addressPong   = "#heartbeat/pong"
	addressHeard  = "#soarbook/heard" // ours: the browser hears what is sent on the comm
	addressRan    = "#soarbook/ran"   // ours: a script that was shown has run; the value is its mark
)

const (
	openTimeout = 5 * time.Second        // for the browser to open the comm, after it got the script
	pingTimeout = 500 * time.Millisecond // for the browser to answer, before the script is sent again
	runTimeout  = 5 * time.Second        // for the browser to run a script that was shown, before its output is replaced
	pingAfter   = time.Second            // the browser was heard of so lately that it need not be asked
)

// frontendScript opens the comm from the browser and gives gonbui's widgets globalThis.gonb_comm. It is ours; its interface is GoNB's.
//
//go:embed comm.js
var frontendScript string

// comm connects programs that use gonbui's widgets, dom and comms packages with the browser.
type comm struct {
	k        *kernel
	kernelID string        // by which the browser finds the kernel at Jupyter's server
	usable   chan struct{} // closed when k.pipe is there

	mu       sync.Mutex
	id       string        // of the comm that the browser opened; empty for none
	heard    bool          // the browser hears what is sent on it
	opened   chan struct{} // closed when it does
	lastSeen time.Time
	script   string  // display id of the script, while it waits for the browser
	failed   *output // the cell in which the browser did not answer: it is not asked again there
	pong     chan struct{}
	wanted   map[string]bool    // addresses that the program listens to
	installs sync.Mutex         // one installation at a time
	scripts  map[string]*script // by display id: shown, and not known to have run
}

// script is one that the browser was sent in an output.
type script struct {
	mark string
	ran  chan struct{} // closed when the browser has run it
}

// markScript returns html with a mark behind it that tells when the browser has run the scripts in it. Without a browser, or without a
// script, it is html.
//
// dom.TransientJavascript of gonbui shows a script and empties the output at once. A front end renders when it has time, so on a busy
// machine it saw the empty output only, and the program waited for its widget forever.
func (c *comm) markScript(displayID, html string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.heard || !strings.Contains(html, "<script") {
		return html
	}
	s := &script{mark: rand.Text(), ran: make(chan struct{})}
	c.scripts[displayID] = s
	return html + `<script>globalThis.gonb_comm?.send("` + addressRan + `", "` + s.mark + `")</script>`
}

// awaitScript waits until the script that was last shown under the id has run, before its output is replaced.
func (c *comm) awaitScript(displayID string) {
	c.mu.Lock()
	s := c.scripts[displayID]
	c.mu.Unlock()
	if s == nil {
		return
	}
	defer func() {
		c.mu.Lock()
		delete(c.scripts, displayID)
		c.mu.Unlock()
	}()
	select {
	case <-s.ran:
	case <-c.k.ctx.Done():
	case <-time.After(runTimeout):
		c.k.log.Warn("widgets: the browser has not run a script in time", "display", displayID)
	}
}

// scriptRan notes that the browser has run the script with the mark.
func (c *comm) scriptRan(mark any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.scripts {
		if s.mark == mark && s.mark != "" {
			close(s.ran)
			s.mark = "" // a front end may run it again
		}
	}
}

func newComm(k *kernel, kernelID string) *comm {
	return &comm{k: k, kernelID: kernelID, usable: make(chan struct{}), opened: make(chan struct{}), wanted: map[string]bool{}, scripts: map[string]*script{}, pong: make(chan struct{}, 1)}
}

// serveComms handles comm messages in the order in which they came, also while a cell runs.
func (k *kernel) serveComms() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case r := <-k.comms:
			k.busy(r)
			if err := k.comm.handle(r); err != nil {
				k.log.Warn("comm", "err", err)
			}
			k.idle(r)
		}
	}
}

type commContent struct {
	ID         string          `json:"comm_id"`
	TargetName string          `json:"target_name"`
	Data       json.RawMessage `json:"data"`
}

func (c *comm) handle(r *wire.Request) error {
	var content commContent
	if err := unmarshal(r, &content); err != nil {
		return err
	}
	switch r.Header.MsgType {
	case "comm_open":
		if content.TargetName != commTarget || content.ID == "" {
			// As the specification wants: an unknown target is closed at once, so that both sides know.
			return r.Publish("comm_close", map[string]any{"comm_id": content.ID, "data": map[string]any{}})
		}
		return c.open(r, content.ID)
	case "comm_close":
		c.mu.Lock()
		if content.ID == c.id {
			c.reset()
		}
		c.mu.Unlock()
		return nil
	}
	var data struct {
		Address string `json:"address"`
		Value   any    `json:"value"`
	}
	if err := json.Unmarshal(content.Data, &data); err != nil {
		return fmt.Errorf("comm_msg: data: %w", err)
	}
	c.mu.Lock()
	if content.ID == "" || content.ID != c.id {
		c.mu.Unlock()
		return fmt.Errorf("comm_msg: comm %q is not open", content.ID)
	}
	c.lastSeen = time.Now()
	wanted := c.wanted[data.Address]
	c.mu.Unlock()
	switch {
	case data.Address == addressPong:
		wakeUp(c.pong)
	case data.Address == addressHeard:
		return c.hear(r)
	case data.Address == addressRan:
		c.scriptRan(data.Value)
	case data.Address == addressPing:
		return c.send(r, addressPong, map[string]any{"value": true})
	case wanted:
		<-c.usable
		return c.k.pipe.Send(data.Address, data.Value)
	}
	return nil
}

// reset forgets the connection. c.mu is held.
func (c *comm) reset() {
	c.id, c.heard = "", false
	select {
	case <-c.opened:
		c.opened = make(chan struct{})
	default:
	}
}

// open notes the comm that the browser opened, and acknowledges it. The browser asks again until it hears something: Jupyter's server may not
// pass on yet what is published. Nothing else is sent before it says so.
func (c *comm) open(r *wire.Request, id string) error {
	c.mu.Lock()
	old := c.id
	c.reset()
	c.id, c.lastSeen = id, time.Now()
	c.mu.Unlock()
	var errs []error
	if old != "" {
		errs = append(errs, r.Publish("comm_close", map[string]any{"comm_id": old, "data": map[string]any{}}))
	}
	return errors.Join(append(errs, c.send(r, addressOpened, map[string]any{"value": true}))...)
}

// hear notes that the browser hears what is sent on the comm.
func (c *comm) hear(r *wire.Request) error {
	c.mu.Lock()
	script, again := c.script, c.heard
	if !again {
		c.heard, c.script, c.failed = true, "", nil
		close(c.opened)
	}
	c.mu.Unlock()
	if again || script == "" {
		return nil
	}
	return erase(r, script)
}

// erase empties the output that held the script: it shall not be saved with the notebook.
func erase(r *wire.Request, displayID string) error {
	return r.Publish("update_display_data", map[string]any{"data": map[string]any{"text/html": ""}, "metadata": map[string]any{},
		"transient": map[string]any{"display_id": displayID}})
}

func (c *comm) send(r *wire.Request, address string, data map[string]any) error {
	c.mu.Lock()
	id := c.id
	c.mu.Unlock()
	data["address"] = address
	return r.Publish("comm_msg", map[string]any{"comm_id": id, "data": data})
}

// info answers comm_info_request.
func (c *comm) info(r *wire.Request) (any, error) {
	var req struct {
		TargetName string `json:"target_name"`
	}
	if err := unmarshal(r, &req); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	comms := map[string]any{}
	if c.id != "" && (req.TargetName == "" || req.TargetName == commTarget) {
		comms[c.id] = map[string]string{"target_name": commTarget}
	}
	return map[string]any{"status": "ok", "comms": comms}, nil
}

var errNoBrowser = errors.New("no browser answered: widgets and gonbui/dom work in JupyterLab and the notebook, not in a headless run")

// install makes sure that the browser listens: it sends the script unless the browser is known to be there.
func (c *comm) install(o *output) error {
	if o == nil {
		return errors.New("gonbui widgets: no cell has run yet")
	}
	c.installs.Lock()
	defer c.installs.Unlock()
	c.mu.Lock()
	alive := c.heard && time.Since(c.lastSeen) <= pingAfter
	known, failed := c.heard, c.failed == o
	c.mu.Unlock()
	if alive {
		return nil
	}
	if failed {
		return errNoBrowser
	}
	if c.kernelID == "" {
		return errors.New("gonbui widgets: the connection file is not named kernel-ID.json, so that the browser cannot find this kernel; start it from JupyterLab")
	}
	if known {
		if ok, err := c.heartbeat(o); err != nil || ok {
			return err
		}
	}
	id := "soarbook_comm_" + rand.Text()
	c.mu.Lock()
	c.reset()
	c.script = id
	opened := c.opened
	c.mu.Unlock()
	script := strings.ReplaceAll(frontendScript, "{{KERNEL_ID}}", c.kernelID)
	o.Display(eval.Display{ID: id, Data: map[string]any{"text/html": "<script>" + script + "</script>"}})
	select {
	case <-opened:
		return nil
	case <-c.k.ctx.Done():
		return errShutdown
	case <-time.After(openTimeout):
	}
	c.mu.Lock()
	c.script, c.failed = "", o
	c.mu.Unlock()
	return errors.Join(errNoBrowser, erase(o.r, id))
}

// heartbeat asks the browser for a sign of life.
func (c *comm) heartbeat(o *output) (bool, error) {
	c.mu.Lock()
	id := c.id
	c.mu.Unlock()
	if id == "" {
		return false, nil
	}
	select {
	case <-c.pong:
	default:
	}
	if err := c.send(o.r, addressPing, map[string]any{"value": true}); err != nil {
		return false, err
	}
	select {
	case <-c.pong:
		return true, nil
	case <-c.k.ctx.Done():
		return false, errShutdown
	case <-time.After(pingTimeout):
		return false, nil
	}
}

// toFrontend sends a value of the program to the browser, or asks for one.
func (c *comm) toFrontend(o *output, address string, value any, request bool) error {
	if err := c.install(o); err != nil {
		return once(err)
	}
	switch {
	case address == protocol.GonbuiStartAddress: // wants no more than the installation
		return nil
	case request:
		return c.send(o.r, address, map[string]any{"read_request": true})
	}
	return c.send(o.r, address, map[string]any{"value": value})
}

// subscribe notes that the program wants the values at an address.
func (c *comm) subscribe(o *output, address string, on bool) error {
	c.mu.Lock()
	if on {
		c.wanted[address] = true
	} else {
		delete(c.wanted, address)
	}
	c.mu.Unlock()
	if !on {
		return nil
	}
	return once(c.install(o))
}

// once keeps a cell from being told again and again that there is no browser: the joined error is that of the first time.
func once(err error) error {
	if err == errNoBrowser {
		return nil
	}
	return err
}

// forget drops the subscriptions of a program that is gone.
func (c *comm) forget() {
	c.mu.Lock()
	clear(c.wanted)
	c.mu.Unlock()
}
