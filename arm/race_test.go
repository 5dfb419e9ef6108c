//go:build race

package arm_test

// raced: the race detector makes pure-Go training ten times slower, so it sees one kill of many.
const raced = true
