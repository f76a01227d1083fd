// Package seats opens and keeps the seats of an instance.
//
// [Seats] makes the declared topics through the catalogue, opens a seat for each
// partition that is used, with its index, its view and its reader of single events, and
// runs it again after trouble that is its own (seats.go). A seat ends when its topic is
// deleted or recreated. A view answers once it has folded what the log held at the start
// (catchup.go). Writes ask a permit that the ownership register's client gives
// (permit.go), and the client asks the seats where the logs of a unit end and what was
// applied of them (unitlogs.go).
package seats
