package retrieval

import "net/http"

// SetTransport replaces the connection of a client by a function, for fuzzing.
func (c *Client) SetTransport(transport http.RoundTripper) { c.http.Transport = transport }

// Analyze returns the terms of a text.
func Analyze(text string) []string {
	m := newMapping()
	var terms []string
	for _, token := range m.AnalyzerNamed(m.DefaultAnalyzer).Analyze([]byte(text)) {
		terms = append(terms, string(token.Term))
	}
	return terms
}

// BleveVersion is what indexes are marked with.
const BleveVersion = bleveVersion
