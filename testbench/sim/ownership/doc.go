// Package ownership simulates the ownership protocol of package router: regions
// with several instances, whose clocks err by up to the assumed rate, against one
// register that loses requests and answers, reads stale, and delivers watches and
// broadcasts late or never. Processes pause before any step and between any two
// effects, die, and come back with what they had put on disk. Operators fence and
// unfence all the while.
//
// A seed is a history. The machines are the product's own ([ownership.Core]); the
// register and the adapter around the machines are package register's, which the
// world of logs plays with, too. Here they are alone, with the default times and
// with logs that are mere lists: so a seed has minutes of history and every trap
// that is known.
package ownership
