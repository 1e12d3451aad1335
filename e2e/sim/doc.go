// Package sim runs edges and nodes, the real programs with the real multiplexer, on a network in memory and on fake time.
// One seed decides everything: who there is, who asks for what, how the providers behave and what breaks when. What
// happens is recorded, and judged by the invariants of the reliability contract afterwards, never inside a scenario.
//
// It is for tests only. The same seed has the same history. That rests on three rules: what happens at random happens
// at a time of its own (to the nanosecond), random numbers are those of the seed for one purpose (see dice), and of
// what happens within one instant nothing depends on the order in which goroutines run. So the network delays bytes
// by the instant at which they were sent, not by the write that they came in.
package sim
