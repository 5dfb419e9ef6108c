package retrieval_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/soarbook/soarbook/data"
	"github.com/soarbook/soarbook/retrieval"
	"github.com/soarbook/soarbook/retrieval/retrievaltest"
)

func ExampleNewClient() {
	searcher := &retrievaltest.Fake{Passages: []data.Passage{{ID: "1", Title: "France", Text: "The capital is Paris."}}}
	handler, err := retrieval.NewHandler(searcher, retrieval.DefaultServerConfig(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()

	client, err := retrieval.NewClient(server.URL, retrieval.DefaultClientConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	hits, err := client.Search(context.Background(), "capital of France", 3)
	fmt.Println(hits[0].Title, hits[0].Score, err)
	// Output: France 2 <nil>
}

func ExampleMeasure() {
	searcher := &retrievaltest.Fake{Passages: []data.Passage{{ID: "1", Text: "lion"}, {ID: "2", Text: "lion zebra"}}}
	collection := &retrieval.Collection{
		Queries: []retrieval.Query{{ID: "q", Text: "lion"}},
		Qrels:   retrieval.Qrels{"q": {"2": 1}},
	}
	m, err := retrieval.Measure(context.Background(), searcher, collection)
	fmt.Printf("nDCG@10 %.3f, MRR@10 %.3f %v\n", m.NDCG10, m.MRR10, err)
	// Output: nDCG@10 0.631, MRR@10 0.500 <nil>
}
