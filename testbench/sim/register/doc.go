// Package register simulates the ownership register for the worlds of its parent:
// the stream that decides, and instances that run the product's own state machine
// ([ownership.Core]) against it. Requests and answers are lost or late, reads are
// stale, watches fall silent, broadcasts come late or never, processes pause before
// any step and between any two effects and die at any of them; clocks err by up to
// the assumed rate, and disks are rolled back, the register's own among them.
//
// What every history must keep is checked where it happens: I1, I2, I5, I7, I11 and
// I13 of the reference. What only a world knows (answers, logs) it checks itself.
package register
