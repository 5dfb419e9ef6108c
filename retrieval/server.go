package retrieval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/soarbook/soarbook/data"
)

// ServerConfig bounds what a server takes.
type ServerConfig struct {
	DefaultK       int           // passages for each query when a request does not say topk; 1 to [MaxK]
	MaxQueries     int           // queries of one request; ≥ 1
	MaxBody        int64         // bytes of a request's body; ≥ 1
	MaxConcurrent  int           // requests searched at once, the others wait; ≥ 1
	RequestTimeout time.Duration // from the first byte read to the last written, waiting included; > 0
	Grace          time.Duration // how long running requests may take to end when the server stops; ≥ 0
}

// DefaultServerConfig is topk 3 as Search-R1's server has it, 1,024 queries, 8 MiB, 16 requests at once, a minute for a
// request and 10 seconds to end.
func DefaultServerConfig() ServerConfig {
	return ServerConfig{
		DefaultK: 3, MaxQueries: 1024, MaxBody: 8 << 20, MaxConcurrent: 16,
		RequestTimeout: time.Minute, Grace: 10 * time.Second,
	}
}

// Validate reports the first value that cannot be.
func (c ServerConfig) Validate() error {
	switch {
	case c.DefaultK < 1 || c.DefaultK > MaxK:
		return fmt.Errorf("retriever: default topk is %d; want 1 to %d", c.DefaultK, MaxK)
	case c.MaxQueries < 1:
		return fmt.Errorf("retriever: at most %d queries for a request; want at least 1", c.MaxQueries)
	case c.MaxBody < 1:
		return fmt.Errorf("retriever: at most %d bytes for a request; want at least 1", c.MaxBody)
	case c.MaxConcurrent < 1:
		return fmt.Errorf("retriever: %d requests at once; want at least 1", c.MaxConcurrent)
	case c.RequestTimeout <= 0:
		return fmt.Errorf("retriever: %v for a request; want more than nothing", c.RequestTimeout)
	case c.Grace < 0:
		return fmt.Errorf("retriever: %v to end; want 0 or more", c.Grace)
	}
	return nil
}

// request is the body of POST /retrieve.
type request struct {
	Queries      []string `json:"queries"`
	TopK         *int     `json:"topk"` // absent or null: the server's default
	ReturnScores bool     `json:"return_scores"`
}

// document is a passage as the server sends it: Search-R1's id and contents, and the fields that these are made of.
type document struct {
	ID       string  `json:"id"`
	Contents string  `json:"contents"`
	Title    string  `json:"title"`
	Text     *string `json:"text"`
	URL      string  `json:"url,omitempty"`
}

// scored is a document with its score.
type scored struct {
	Document document `json:"document"`
	Score    float64  `json:"score"`
}

// reply is the body of an answer: for each query its documents, scored or bare.
type reply[T any] struct {
	Result [][]T `json:"result"`
}

// failure is the body of an answer other than 200.
type failure struct {
	Error string `json:"error"`
}

// NewHandler serves Search-R1's protocol: POST /retrieve with {"queries": […], "topk": k, "return_scores": bool} is
// answered by {"result": [[{"document": {…}, "score": …}, …], …]}, a list for each query, best passage first; without
// return_scores the lists hold the documents alone. GET /healthz says {"status": "ok"}.
//
// Requests that cannot be served get a JSON object with the field error: 400 (not JSON, values out of bounds), 404, 405,
// 413 (too large), 500 (the search failed), 503 (no time left). Searches that fail are logged; logger may be nil.
func NewHandler(searcher Searcher, config ServerConfig, logger *slog.Logger) (http.Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &server{searcher, config, logger, make(chan struct{}, config.MaxConcurrent)}
	mux := http.NewServeMux()
	mux.HandleFunc("/retrieve", s.retrieve)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s.write(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.write(w, http.StatusNotFound, failure{fmt.Sprintf("there is no %s here; ask for POST /retrieve", r.URL.Path)})
	})
	return mux, nil
}

type server struct {
	searcher Searcher
	config   ServerConfig
	logger   *slog.Logger
	slots    chan struct{} // one element for each request that is being searched
}

func (s *server) retrieve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		s.write(w, http.StatusMethodNotAllowed, failure{fmt.Sprintf("got %s /retrieve; want POST with a JSON body", r.Method)})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.RequestTimeout)
	defer cancel()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.config.MaxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			s.write(w, http.StatusRequestEntityTooLarge, failure{fmt.Sprintf("the body is longer than %d bytes; send fewer queries", s.config.MaxBody)})
		} else {
			s.write(w, http.StatusBadRequest, failure{fmt.Sprintf("reading the body: %v; send it again", err)})
		}
		return
	}
	request, err := parseRequest(body, s.config)
	if err != nil {
		s.write(w, http.StatusBadRequest, failure{err.Error()})
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		s.write(w, http.StatusServiceUnavailable, failure{"too many requests at once, there was no turn for this one; try again"})
		return
	}
	results := make([][]scored, len(request.Queries))
	for i, query := range request.Queries {
		hits, err := s.searcher.Search(ctx, query, *request.TopK)
		switch {
		case err != nil && ctx.Err() != nil:
			s.write(w, http.StatusServiceUnavailable, failure{fmt.Sprintf("no time was left after %d of %d queries; send fewer", i, len(request.Queries))})
			return
		case err != nil:
			s.logger.Error("search", "query", query, "error", err)
			s.write(w, http.StatusInternalServerError, failure{fmt.Sprintf("query %d: %v", i, err)})
			return
		}
		results[i] = make([]scored, len(hits))
		for j, hit := range hits {
			results[i][j] = scored{newDocument(hit.Passage), hit.Score}
		}
	}
	if request.ReturnScores {
		s.write(w, http.StatusOK, reply[scored]{results})
		return
	}
	bare := make([][]document, len(results))
	for i, result := range results {
		bare[i] = make([]document, len(result))
		for j, item := range result {
			bare[i][j] = item.Document
		}
	}
	s.write(w, http.StatusOK, reply[document]{bare})
}

func newDocument(p data.Passage) document {
	return document{ID: p.ID, Contents: p.Contents(), Title: p.Title, Text: &p.Text, URL: p.URL}
}

// parseRequest reads and checks a body; topk is set afterwards.
func parseRequest(body []byte, config ServerConfig) (request, error) {
	var r request
	if err := data.DecodeLine(body, &r); err != nil {
		return request{}, err
	}
	if r.TopK == nil {
		r.TopK = &config.DefaultK
	}
	switch {
	case r.Queries == nil:
		return request{}, errors.New(`the field "queries" is missing; want an array of strings`)
	case len(r.Queries) > config.MaxQueries:
		return request{}, fmt.Errorf(`"queries" has %d elements; send at most %d in one request`, len(r.Queries), config.MaxQueries)
	case *r.TopK < 1 || *r.TopK > MaxK:
		return request{}, fmt.Errorf(`"topk" is %d; want 1 to %d`, *r.TopK, MaxK)
	}
	return r, nil
}

func (s *server) write(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil { // a score that is no number
		s.logger.Error("reply", "error", err)
		status, text = http.StatusInternalServerError, []byte(`{"error":"the reply cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		s.logger.Debug("the client went away", "error", err)
	}
}

// Serve answers requests on the listener until ctx is done; then it takes no new ones, lets the running ones end for
// config.Grace, and returns nil when they did. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, searcher Searcher, config ServerConfig, logger *slog.Logger) error {
	handler, err := NewHandler(searcher, config, logger)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{
		Handler: handler,
		// A client that sends slowly or does not read holds no connection for ever.
		ReadHeaderTimeout: min(10*time.Second, config.RequestTimeout),
		ReadTimeout:       config.RequestTimeout,
		WriteTimeout:      2 * config.RequestTimeout, // counts from the end of the request's header
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	if logger != nil {
		server.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("retriever %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), config.Grace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return errors.Join(fmt.Errorf("retriever %s: requests were still running after %v and were cut off: %w", listener.Addr(), config.Grace, err), server.Close())
	}
	return nil
}
