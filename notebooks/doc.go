// Package notebooks owns what the lessons beside it share: a session that holds a policy, a knowledge base and an agent, so that a
// cell has ten lines or fewer.
package notebooks
