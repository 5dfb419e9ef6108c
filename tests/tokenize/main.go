// Command tokenize encodes texts for tests/reference/tokenizer_fuzz.py: a JSON line {"text":…,"ordinary":…} in, a JSON
// line {"ids":…,"text":…,"plain":…} out, where text and plain are what the ids decode to with and without special tokens.
//
//	go run ./tests/tokenize PATH < texts.jsonl > ids.jsonl
//
// PATH is a directory in Hugging Face layout or a GGUF file.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/soarbook/soarbook/policy/checkpoint"
	"github.com/soarbook/soarbook/policy/sampling"
	"github.com/soarbook/soarbook/policy/tokenizer"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tokenize:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("want one argument: a directory with tokenizer.json, or a GGUF file")
	}
	tok, err := open(args[0])
	if err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	enc := json.NewEncoder(w)
	dec := json.NewDecoder(in)
	for {
		var x struct {
			Text     string `json:"text"`
			Ordinary bool   `json:"ordinary"`
		}
		if err := dec.Decode(&x); err == io.EOF {
			return w.Flush()
		} else if err != nil {
			return err
		}
		ids := tok.Encode(sampling.Text{{Text: x.Text, Ordinary: x.Ordinary}})
		if err := enc.Encode(map[string]any{
			"ids":   ids,
			"text":  tokenizer.Replace(tok.Decode(ids)),
			"plain": tokenizer.Replace(tok.DecodeSkipSpecial(ids)),
		}); err != nil {
			return err
		}
	}
}

func open(path string) (*tokenizer.Tokenizer, error) {
	if !strings.HasSuffix(path, ".gguf") {
		return tokenizer.Load(path)
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	v, ok := c.GGUFVocab()
	if !ok {
		return nil, fmt.Errorf("%s has no tokenizer", path)
	}
	return tokenizer.FromGGUF(v)
}
