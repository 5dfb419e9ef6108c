package arm

// Wrapped returns the options with a test between the arm and what it works with.
func (o Options) Wrapped(wrap func(a *Arm, log Log) Log) Options {
	o.wrap = wrap
	return o
}

// ParseSums and ParseManifest are the parsers of manifests.
var (
	ParseSums     = parseSums
	ParseManifest = parseManifest
)
