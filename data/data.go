// Package data owns the records that every other package speaks of: passages, the questions asked about them and the
// normalization by which an answer is compared with a gold.
//
// It is the lowest layer of soarbook and imports no other package of it.
package data

// Passage is one retrievable text of a knowledge base.
type Passage struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	Text  string `json:"text"`
	URL   string `json:"url,omitempty"`
}

// Hit is a passage that a search returned, with the score by which it was ranked. Scores are comparable within one
// search only; a larger one is better.
type Hit struct {
	Passage
	Score float64 `json:"score"`
}

// Question is one training or evaluation example of short-answer question answering.
type Question struct {
	ID       string         `json:"id"`
	Question string         `json:"question"`
	Golds    []string       `json:"golden_answers"` // any of them is right; see [ExactMatch]
	Metadata map[string]any `json:"metadata,omitempty"`
}
