// Package imports names the packages of other modules that cells import without this module's own code doing so. That it imports them
// keeps what they require in go.mod and go.sum: cells download nothing.
package imports

import (
	_ "github.com/gomlx/gomlx/ml/layers"          // layers of models
	_ "github.com/gomlx/gomlx/ml/train"           // GoMLX's own training loop
	_ "github.com/gomlx/gomlx/ml/train/loss"      // its losses
	_ "github.com/gomlx/gomlx/ml/train/metric"    // its metrics
	_ "github.com/gomlx/gomlx/ml/train/optimizer" // its optimizers
	_ "github.com/janpfeifer/gonb/gonbui/plotly"  // GoNB's plotly figures
)
