//go:build !race

package arm_test

const raced = false
