package retrieval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/soarbook/soarbook/data"
)

// ClientConfig bounds how long and how often a client tries.
type ClientConfig struct {
	Timeout  time.Duration // of one try; > 0
	Attempts int           // tries of one request, the first included; ≥ 1
	Backoff  time.Duration // pause before the second try, doubled before each further one and shortened by up to half at random; ≥ 0
	MaxBody  int64         // bytes of a reply; ≥ 1
}

// DefaultClientConfig is four tries of 30 seconds with pauses from 200 ms, and replies of at most 64 MiB.
func DefaultClientConfig() ClientConfig {
	return ClientConfig{Timeout: 30 * time.Second, Attempts: 4, Backoff: 200 * time.Millisecond, MaxBody: 64 << 20}
}

// Validate reports the first value that cannot be.
func (c ClientConfig) Validate() error {
	switch {
	case c.Timeout <= 0:
		return fmt.Errorf("retriever client: timeout is %v; want more than nothing", c.Timeout)
	case c.Attempts < 1:
		return fmt.Errorf("retriever client: %d attempts; want at least 1", c.Attempts)
	case c.Backoff < 0:
		return fmt.Errorf("retriever client: backoff is %v; want 0 or more", c.Backoff)
	case c.MaxBody < 1:
		return fmt.Errorf("retriever client: replies of at most %d bytes; want at least 1", c.MaxBody)
	}
	return nil
}

// StatusError is a reply whose status is not 200.
type StatusError struct {
	URL    string
	Status int
	Body   string // its beginning
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("retriever %s: status %d %s: %s", e.URL, e.Status, http.StatusText(e.Status), e.Body)
}

// ReplyError is a reply with status 200 that is not what the protocol has.
type ReplyError struct {
	URL  string
	Body string // its beginning
	Err  error
}

func (e *ReplyError) Error() string {
	return fmt.Sprintf("retriever %s: the reply is not Search-R1's: %v: %s; is a retriever at this address?", e.URL, e.Err, e.Body)
}
func (e *ReplyError) Unwrap() error { return e.Err }

// Client searches through a server that speaks Search-R1's protocol, this package's or another. Any number of goroutines
// may use it.
type Client struct {
	url    string
	config ClientConfig
	http   *http.Client
}

// NewClient makes a client of the server at address: http://HOST:PORT, with or without the path /retrieve. It does not
// connect yet.
func NewClient(address string, config ClientConfig) (*Client, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fmt.Errorf("retriever client: the address is %q; want http://HOST:PORT", address)
	}
	if strings.Trim(parsed.Path, "/") == "" {
		parsed.Path = "/retrieve"
	}
	return &Client{url: parsed.String(), config: config, http: &http.Client{Timeout: config.Timeout}}, nil
}

// Search is [Client.SearchAll] for one query.
func (c *Client) Search(ctx context.Context, query string, k int) ([]data.Hit, error) {
	results, err := c.SearchAll(ctx, []string{query}, k)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// SearchAll searches for all queries in one request and returns at most k hits for each, in the order of the queries.
// Where the server sends no scores they are 1, ½, ⅓, … by place.
//
// Failed connections, timeouts of a try and replies with status 429 or 5xx are tried again; the error is that of the last
// try: a [*StatusError], a [*ReplyError] (not tried again), or what the connection returned.
func (c *Client) SearchAll(ctx context.Context, queries []string, k int) ([][]data.Hit, error) {
	if err := checkK(k); err != nil {
		return nil, err
	}
	if len(queries) == 0 {
		return nil, nil
	}
	body, err := json.Marshal(request{Queries: queries, TopK: &k, ReturnScores: true})
	if err != nil {
		return nil, fmt.Errorf("retriever %s: %w", c.url, err)
	}
	for attempt, pause := 1, c.config.Backoff; ; attempt, pause = attempt+1, 2*pause {
		results, err := c.try(ctx, body, len(queries), k)
		if err == nil {
			return results, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("retriever %s: %w", c.url, ctx.Err())
		}
		if attempt == c.config.Attempts || !worthwhile(err) {
			if attempt > 1 {
				err = fmt.Errorf("after %d tries: %w", attempt, err)
			}
			return nil, err
		}
		if pause > 0 {
			// The pauses of many clients that failed together part; nothing that is measured depends on them.
			select {
			case <-time.After(pause - rand.N(pause/2+1)):
			case <-ctx.Done():
				return nil, fmt.Errorf("retriever %s: %w", c.url, ctx.Err())
			}
		}
	}
}

// worthwhile reports whether another try may end better.
func worthwhile(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status >= 500 || status.Status == http.StatusTooManyRequests
	}
	var reply *ReplyError
	return !errors.As(err, &reply)
}

func (c *Client) try(ctx context.Context, body []byte, queries, k int) ([][]data.Hit, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("retriever %s: %w", c.url, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("retriever: %w; start one with `soarbook retriever serve`, or check the address", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, c.config.MaxBody+1))
	if response.StatusCode != http.StatusOK {
		return nil, &StatusError{c.url, response.StatusCode, beginning(text)}
	}
	if err != nil {
		return nil, fmt.Errorf("retriever %s: reading the reply: %w", c.url, err)
	}
	if int64(len(text)) > c.config.MaxBody {
		return nil, &ReplyError{c.url, beginning(text), fmt.Errorf("it is longer than %d bytes", c.config.MaxBody)}
	}
	results, err := parseReply(text, queries, k)
	if err != nil {
		return nil, &ReplyError{c.url, beginning(text), err}
	}
	return results, nil
}

// beginning is as much of a body as an error message shows.
func beginning(body []byte) string {
	const most = 500
	text := strings.TrimSpace(strings.ToValidUTF8(string(body[:min(len(body), most)]), "\uFFFD"))
	if text == "" {
		return "(an empty body)"
	}
	if len(body) > most {
		text += "…"
	}
	return text
}

// parseReply reads both forms of a reply, items with a document and a score or documents alone, and the forms of a
// document in use: id and contents, or id, title and text.
func parseReply(body []byte, queries, k int) ([][]data.Hit, error) {
	var r reply[json.RawMessage]
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("not JSON of its form: %w", err)
	}
	if len(r.Result) != queries {
		return nil, fmt.Errorf(`"result" has %d lists for %d queries`, len(r.Result), queries)
	}
	results := make([][]data.Hit, len(r.Result))
	for i, list := range r.Result {
		if len(list) > k {
			return nil, fmt.Errorf("result %d has %d passages, asked for %d", i, len(list), k)
		}
		results[i] = make([]data.Hit, len(list))
		for j, item := range list {
			hit, err := parseItem(item, j)
			if err != nil {
				return nil, fmt.Errorf("result %d, passage %d: %w", i, j, err)
			}
			results[i][j] = hit
		}
	}
	return results, nil
}

func parseItem(item json.RawMessage, place int) (data.Hit, error) {
	var wrapped struct {
		Document json.RawMessage `json:"document"`
		Score    *float64        `json:"score"`
	}
	if err := json.Unmarshal(item, &wrapped); err != nil {
		return data.Hit{}, err
	}
	document := wrapped.Document
	score := 1 / float64(place+1)
	if document == nil {
		document = item
	} else if wrapped.Score != nil {
		score = *wrapped.Score
	}
	passage, err := data.ParsePassage(document)
	return data.Hit{Passage: passage, Score: score}, err
}
