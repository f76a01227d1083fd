package gateway

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Incidents shows the records that were deleted before the region's readers had them.
type Incidents interface {
	// List are all incidents, in the same order each time.
	List() []Incident
	// Get is one of them. Error: ErrIncidentUnknown.
	Get(id string) (Incident, error)
	// Accept goes on without what an incident has lost, up to an offset, which must be its
	// last, so that whoever accepts has seen how much that is. Errors: ErrIncidentUnknown; one that
	// wraps ErrNotAccepted: nothing has changed; after any other it may be accepted.
	Accept(ctx context.Context, id string, to int64, by, reason string) (Incident, error)
}

// Errors of Incidents.
var (
	ErrIncidentUnknown = errors.New("gateway: no such incident")
	ErrNotAccepted     = errors.New("the incident was not accepted")
)

// Incident is an incident as it is shown.
type Incident struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"` // first offset lost
	To        int64  `json:"to"`   // last offset lost
	Since     Time   `json:"since"`
	State     string `json:"state"`
	Detail    string `json:"detail"`
	// Log is the topic that lost them: the local one, or the copy of another region's.
	Log         string              `json:"log"`
	Region      string              `json:"region,omitempty"` // whose records they were
	Target      string              `json:"target,omitempty"` // the region to which a link has not copied them
	Count       int64               `json:"count"`
	Remedy      string              `json:"remedy"`
	Consequence string              `json:"consequence"` // of accepting
	Accepted    *IncidentAcceptance `json:"accepted"`
}

// IncidentAcceptance says who goes on without what was lost.
type IncidentAcceptance struct {
	By     string `json:"by"`
	At     Time   `json:"at"`
	Reason string `json:"reason"`
	To     int64  `json:"to"`
}

// IncidentList is the answer of GET /v1/incidents.
type IncidentList struct {
	Incidents []Incident `json:"incidents"`
	Next      *string    `json:"next"`
	End       bool       `json:"end"`
}

// AcceptResult is the answer of POST /v1/incidents/{id}/accept. Exit is the exit code of the
// command, always 0: an incident that was not accepted is a problem, INCIDENT_CHANGED.
type AcceptResult struct {
	Exit     int      `json:"exit"`
	Incident Incident `json:"incident"`
	Detail   string   `json:"detail"`
}

// accepted is the exit code of a command that succeeded.
const accepted = 0

// acceptTime bounds the writing of two records.
const acceptTime = 30 * time.Second

// incidents is GET /v1/incidents on the management listener.
func (s *Server) incidents(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	answer := IncidentList{Incidents: []Incident{}, End: true}
	if s.deps.Incidents != nil {
		answer.Incidents = append(answer.Incidents, s.deps.Incidents.List()...)
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(answer), '\n'))
}

// incident is GET /v1/incidents/{id} on the management listener.
func (s *Server) incident(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	x, err := s.findIncident(c.args[0])
	if err != nil {
		return err
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(x), '\n'))
}

func (s *Server) findIncident(id string) (x Incident, err error) {
	err = ErrIncidentUnknown
	if s.deps.Incidents != nil {
		x, err = s.deps.Incidents.Get(id)
	}
	if errors.Is(err, ErrIncidentUnknown) {
		err = newProblem(codeNotFound, "this region knows no incident %q; geogate incident list has all", id)
	}
	return x, err
}

// acceptIncident is POST /v1/incidents/{id}/accept on the management listener.
func (s *Server) acceptIncident(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	var to, by, reason string
	if err := c.commandMembers(map[string]*string{"to": &to, "by": &by, "reason": &reason}); err != nil {
		return err
	}
	last, err := strconv.ParseInt(to, 10, 64)
	switch {
	case err != nil || last < 0:
		return invalid(codeMalformed, atPointer("/to", "must be the last offset of the incident, as it is shown, in a string"))
	case reason == "":
		return invalid(codeMalformed, atPointer("/reason", "going on without records needs a reason; it is kept with the incident"))
	case len(by) > maxReason:
		return invalid(codeMalformed, atPointer("/by", "must have up to %d bytes", maxReason))
	}
	if _, err := s.findIncident(c.args[0]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), acceptTime)
	defer cancel()
	var result AcceptResult
	result.Incident, err = s.deps.Incidents.Accept(ctx, c.args[0], last, by, reason)
	switch {
	case errors.Is(err, ErrNotAccepted):
		return newProblem(codeIncidentChanged, "%s", strings.TrimPrefix(err.Error(), ErrNotAccepted.Error()+": "))
	case err != nil:
		return err
	default:
		result.Exit, result.Detail = accepted, "accepted: "+result.Incident.Consequence
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(result), '\n'))
}
