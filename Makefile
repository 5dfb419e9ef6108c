# make check is what a commit passes; .ci/run is what CI does.
GO ?= go
# Packages whose tests run under the race detector: all but the ones that only start other programs or measure.
RACE = $(shell $(GO) list ./... | grep -v -e /bench -e /tests)

.PHONY: check test bench golden notebooks

check:
	@unformatted=$$(git ls-files -z '*.go' | xargs -0 gofmt -l); \
	  if [ -n "$$unformatted" ]; then printf 'not formatted, run gofmt -w on:\n%s\n' "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -race -gcflags=github.com/gomlx/compute/...=-d=checkptr=0 $(RACE)

test:
	$(GO) test ./...

# The measurements behind every claim of the README.
bench:
	$(GO) run ./cmd/soarbook bench

# Compares everything with the golden files of Transformers, PEFT and Search-R1's reference; -count=1 runs them anew.
golden:
	$(GO) test -count=1 -run 'Golden|Logits|ExactMatch|Format|Tokenizer' ./data/... ./policy/... ./searchr1/...

# Every notebook, headless; pages in out/notebooks.
notebooks:
	$(GO) run ./cmd/soarbook setup
	$(GO) run ./cmd/soarbook execute --html --output out/notebooks notebooks/*.ipynb
