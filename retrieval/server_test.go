package retrieval_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/retrieval/retrievaltest"
)

func newServer(t testing.TB, searcher retrieval.Searcher, change func(*retrieval.ServerConfig)) *httptest.Server {
	t.Helper()
	config := retrieval.DefaultServerConfig()
	if change != nil {
		change(&config)
	}
	handler, err := retrieval.NewHandler(searcher, config, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

func newClient(t testing.TB, url string, change func(*retrieval.ClientConfig)) *retrieval.Client {
	t.Helper()
	config := retrieval.DefaultClientConfig()
	config.Backoff = time.Millisecond
	if change != nil {
		change(&config)
	}
	client, err := retrieval.NewClient(url, config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestFakeConforms(t *testing.T) {
	retrievaltest.TestSearcher(t, &retrievaltest.Fake{Passages: retrievaltest.Corpus()})
}

func TestClientAndServerConform(t *testing.T) {
	server := newServer(t, openCorpus(t), nil)
	retrievaltest.TestSearcher(t, newClient(t, server.URL, nil))
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	response, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := response.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q, want application/json", got)
	}
	return response.StatusCode, string(text)
}

func TestServerReplies(t *testing.T) {
	fake := &retrievaltest.Fake{Passages: []data.Passage{{ID: "7", Title: "Fr", Text: "Paris <b>", URL: "u"}, {ID: "8", Title: "", Text: "Paris"}}}
	server := newServer(t, fake, nil)
	const seven = `{"id":"7","contents":"\"Fr\"\nParis \u003cb\u003e","title":"Fr","text":"Paris \u003cb\u003e","url":"u"}`
	const eight = `{"id":"8","contents":"\"\"\nParis","title":"","text":"Paris"}`
	tests := []struct{ reason, body, want string }{
		{"scored", `{"queries":["paris fr","none"],"topk":2,"return_scores":true}`,
			`{"result":[[{"document":` + seven + `,"score":2},{"document":` + eight + `,"score":1}],[]]}`},
		{"bare, as Search-R1's server does without return_scores", `{"queries":["paris"],"topk":1,"return_scores":false}`, `{"result":[[` + seven + `]]}`},
		{"topk and return_scores may be absent", `{"queries":["paris"]}`, `{"result":[[` + seven + `,` + eight + `]]}`},
		{"topk may be null, as a client with an unset option sends it", `{"queries":["fr"],"topk":null}`, `{"result":[[` + seven + `]]}`},
		{"no queries, no results", `{"queries":[]}`, `{"result":[]}`},
	}
	for _, test := range tests {
		status, body := post(t, server.URL+"/retrieve", test.body)
		if status != 200 || strings.TrimSpace(body) != test.want {
			t.Errorf("%s: %d\n got %s\nwant %s", test.reason, status, body, test.want)
		}
	}
}

func TestServerErrors(t *testing.T) {
	fake := &retrievaltest.Fake{Passages: retrievaltest.Corpus()}
	server := newServer(t, fake, func(c *retrieval.ServerConfig) { c.MaxQueries, c.MaxBody = 2, 200 })
	tests := []struct {
		reason, body string
		status       int
		want         string
	}{
		{"not JSON", `{"queries"`, 400, "not JSON"},
		{"an empty body", ``, 400, "not JSON"},
		{"no queries", `{"topk":3}`, 400, `\"queries\" is missing`},
		{"a query that is no string", `{"queries":[1]}`, 400, `field \"queries\": got a JSON number`},
		{"a string for the array", `{"queries":"x"}`, 400, "want an array"},
		{"topk 0", `{"queries":["x"],"topk":0}`, 400, `\"topk\" is 0; want 1 to 1000`},
		{"topk too large", `{"queries":["x"],"topk":1001}`, 400, `\"topk\" is 1001`},
		{"too many queries", `{"queries":["x","y","z"]}`, 400, "at most 2"},
		{"a body that is too long", `{"queries":["` + strings.Repeat("x", 200) + `"]}`, 413, "longer than 200 bytes"},
	}
	for _, test := range tests {
		status, body := post(t, server.URL+"/retrieve", test.body)
		var failure struct{ Error string }
		if err := json.Unmarshal([]byte(body), &failure); err != nil || failure.Error == "" {
			t.Errorf("%s: body %s is no JSON error", test.reason, body)
		}
		if status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d %s, want %d with %q", test.reason, status, body, test.status, test.want)
		}
	}
	if status, body := post(t, server.URL+"/search", `{}`); status != 404 || !strings.Contains(body, "POST /retrieve") {
		t.Errorf("another path: %d %s", status, body)
	}
	response, err := http.Get(server.URL + "/retrieve")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 405 || response.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %d, Allow %q; want 405, POST", response.StatusCode, response.Header.Get("Allow"))
	}
	response, err = http.Get(server.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("healthz: %d, want 200", response.StatusCode)
	}
	fake.Err = errors.New("disk gone")
	if status, body := post(t, server.URL+"/retrieve", `{"queries":["x"]}`); status != 500 || !strings.Contains(body, "disk gone") {
		t.Errorf("a failing search: %d %s", status, body)
	}
}

// slow searches until it is let go, and counts how many searches run at once.
type slow struct {
	running, most atomic.Int32
	release       chan struct{}
}

func (s *slow) Search(ctx context.Context, _ string, _ int) ([]data.Hit, error) {
	n := s.running.Add(1)
	defer s.running.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	select {
	case <-s.release:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestServerBoundsConcurrency(t *testing.T) {
	searcher := &slow{release: make(chan struct{})}
	server := newServer(t, searcher, func(c *retrieval.ServerConfig) { c.MaxConcurrent, c.RequestTimeout = 2, 300*time.Millisecond })
	client := newClient(t, server.URL, func(c *retrieval.ClientConfig) { c.Attempts = 1 })
	failures := make(chan error, 6)
	for range 6 {
		go func() {
			_, err := client.Search(context.Background(), "x", 1)
			failures <- err
		}()
	}
	for range 6 {
		var status *retrieval.StatusError
		if err := <-failures; !errors.As(err, &status) || status.Status != 503 {
			t.Errorf("error = %v, want status 503", err)
		}
	}
	if got := searcher.most.Load(); got != 2 {
		t.Errorf("%d searches ran at once, want 2", got)
	}
}

func TestServeStopsGracefully(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	searcher := &slow{release: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- retrieval.Serve(ctx, listener, searcher, retrieval.DefaultServerConfig(), nil) }()
	client := newClient(t, "http://"+listener.Addr().String(), func(c *retrieval.ClientConfig) { c.Attempts = 1 })
	answered := make(chan error, 1)
	go func() {
		_, err := client.Search(context.Background(), "x", 1)
		answered <- err
	}()
	for searcher.running.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	stop()
	time.Sleep(20 * time.Millisecond)
	close(searcher.release)
	if err := <-answered; err != nil {
		t.Errorf("the running request: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	if _, err := client.Search(t.Context(), "x", 1); err == nil {
		t.Error("a request after the end: no error")
	}
}

func TestClientErrors(t *testing.T) {
	tests := []struct {
		reason  string
		handler http.HandlerFunc
		tries   int32
		want    string
	}{
		{"a bad request is not sent again", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such topk", 400) }, 1, "status 400 Bad Request: no such topk"},
		{"a failing server is asked again, and not for ever", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "boom", 500) }, 3, "after 3 tries: retriever URL: status 500 Internal Server Error: boom"},
		{"a reply that is not JSON is named and shown", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>login") }, 1, "the reply is not Search-R1's: not JSON of its form"},
		{"its text is in the error", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>login") }, 1, "<html>login"},
		{"an empty reply", func(http.ResponseWriter, *http.Request) {}, 1, "(an empty body)"},
		{"fewer results than queries", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"result":[]}`) }, 1, `"result" has 0 lists for 1 queries`},
		{"more passages than asked for", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"result":[[{"id":"1","text":"x"},{"id":"2","text":"x"},{"id":"3","text":"x"}]]}`)
		}, 1, "3 passages, asked for 2"},
		{"a passage without text", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"result":[[{"document":{"id":"1"}}]]}`) }, 1, "result 0, passage 0: the passage has no text"},
		{"a reply that is too long", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(" ", 2000)) }, 1, "longer than 1000 bytes"},
		{"a connection that breaks is tried again", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 3, "after 3 tries"},
		{"a server that does not answer in time", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 3, "Timeout"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			var tries atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tries.Add(1)
				_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client go
				test.handler(w, r)
			}))
			defer server.Close()
			client := newClient(t, server.URL, func(c *retrieval.ClientConfig) { c.Attempts, c.MaxBody, c.Timeout = 3, 1000, 100*time.Millisecond })
			_, err := client.Search(t.Context(), "x", 2)
			if want := strings.ReplaceAll(test.want, "URL", server.URL+"/retrieve"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, want %q", err, want)
			}
			if got := tries.Load(); got != test.tries {
				t.Errorf("%d tries, want %d", got, test.tries)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		client := newClient(t, "http://127.0.0.1:1", nil)
		if _, err := client.Search(t.Context(), "x", 1); err == nil || !strings.Contains(err.Error(), "retriever serve") {
			t.Errorf("error = %v, want the cure", err)
		}
	})
	t.Run("a retry that works", func(t *testing.T) {
		var tries atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tries.Add(1) < 3 {
				http.Error(w, "not yet", http.StatusServiceUnavailable)
				return
			}
			fmt.Fprint(w, `{"result":[[{"document":{"id":"0","contents":"\"T\"\nx"},"score":0.5}],[{"id":"1","contents":"\"U\"\ny"},{"id":2,"title":"V","text":"z"}]]}`)
		}))
		defer server.Close()
		got, err := newClient(t, server.URL+"/retrieve", nil).SearchAll(t.Context(), []string{"a", "b"}, 2)
		if err != nil {
			t.Fatal(err)
		}
		want := [][]data.Hit{
			{{Passage: data.Passage{ID: "0", Title: "T", Text: "x"}, Score: 0.5}},
			{{Passage: data.Passage{ID: "1", Title: "U", Text: "y"}, Score: 1}, {Passage: data.Passage{ID: "2", Title: "V", Text: "z"}, Score: 0.5}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("both forms of a reply (-want +got):\n%s", diff)
		}
	})
	for _, address := range []string{"", "localhost:8000", "ftp://x", "http://"} {
		if _, err := retrieval.NewClient(address, retrieval.DefaultClientConfig()); err == nil {
			t.Errorf("NewClient(%q): no error", address)
		}
	}
}

func TestConfigs(t *testing.T) {
	for i, change := range []func(*retrieval.ServerConfig){
		func(c *retrieval.ServerConfig) { c.DefaultK = 0 }, func(c *retrieval.ServerConfig) { c.MaxQueries = 0 },
		func(c *retrieval.ServerConfig) { c.MaxBody = 0 }, func(c *retrieval.ServerConfig) { c.MaxConcurrent = 0 },
		func(c *retrieval.ServerConfig) { c.RequestTimeout = 0 }, func(c *retrieval.ServerConfig) { c.Grace = -1 },
	} {
		config := retrieval.DefaultServerConfig()
		change(&config)
		if config.Validate() == nil {
			t.Errorf("server config %d: no error", i)
		}
	}
	for i, change := range []func(*retrieval.ClientConfig){
		func(c *retrieval.ClientConfig) { c.Timeout = 0 }, func(c *retrieval.ClientConfig) { c.Attempts = 0 },
		func(c *retrieval.ClientConfig) { c.Backoff = -1 }, func(c *retrieval.ClientConfig) { c.MaxBody = 0 },
	} {
		config := retrieval.DefaultClientConfig()
		change(&config)
		if config.Validate() == nil {
			t.Errorf("client config %d: no error", i)
		}
	}
}

func FuzzServer(f *testing.F) {
	handler, err := retrieval.NewHandler(&retrievaltest.Fake{Passages: retrievaltest.Corpus()}, retrieval.DefaultServerConfig(), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"queries":["paris"],"topk":1,"return_scores":true}`)
	f.Add(`{"queries":[null]}{}`)
	f.Fuzz(func(t *testing.T, body string) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/retrieve", strings.NewReader(body)))
		var reply struct {
			Result *[][]any
			Error  string
		}
		if err := json.Unmarshal(recorder.Body.Bytes(), &reply); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if ok := recorder.Code == 200; ok != (reply.Result != nil) || ok != (reply.Error == "") {
			t.Fatalf("%q: %d %s", body, recorder.Code, recorder.Body)
		}
	})
}

func FuzzClientReply(f *testing.F) {
	f.Add([]byte(`{"result":[[{"document":{"id":"0","contents":"\"T\"\nx"},"score":0.5}]]}`))
	f.Add([]byte(`{"result":[[{"id":"0","title":"T","text":"x"}]]}`))
	f.Add([]byte(`{"result":[null]}`))
	var body atomic.Value
	client, err := retrieval.NewClient("http://fuzz.invalid", retrieval.DefaultClientConfig())
	if err != nil {
		f.Fatal(err)
	}
	client.SetTransport(roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body.Load().(string)))}, nil
	}))
	f.Fuzz(func(t *testing.T, reply []byte) {
		body.Store(string(reply))
		hits, err := client.Search(t.Context(), "x", 3)
		var bad *retrieval.ReplyError
		switch {
		case err != nil && !errors.As(err, &bad):
			t.Fatalf("error = %v, want a ReplyError", err)
		case len(hits) > 3:
			t.Fatalf("got %d hits, asked for 3", len(hits))
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
