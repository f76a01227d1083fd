package gateway

import (
	"errors"
	"slices"

	"github.com/geogate/geogate/router/ownership"
)

// unitJSON is a unit as GET /v1/ownership shows it.
type unitJSON struct {
	Unit     string       `json:"unit"`
	Owner    *string      `json:"owner"`
	Epoch    uint64       `json:"epoch"`
	State    string       `json:"state"`
	Revision uint64       `json:"revision"`
	Last     *string      `json:"last"`
	By       string       `json:"by"`
	Reason   string       `json:"reason"`
	Epochs   []tenureJSON `json:"epochs"`
}

// tenureJSON is one epoch with its intervals.
type tenureJSON struct {
	First uint64             `json:"first,omitempty"` // of those that are joined
	Epoch uint64             `json:"epoch"`
	Owner string             `json:"owner"`
	Ended bool               `json:"ended"`
	Start []ownership.Extent `json:"start"`
	Cut   []ownership.Extent `json:"cut"`
}

func showUnit(v *UnitView) unitJSON {
	r := &v.Record
	out := unitJSON{
		Unit: r.Unit, Owner: orNull(r.Owner), Epoch: uint64(r.Epoch), State: string(r.State), Revision: v.Revision,
		Last: orNull(r.Last), By: r.By, Reason: r.Reason, Epochs: []tenureJSON{},
	}
	for _, t := range r.Epochs {
		e := tenureJSON{First: uint64(t.First), Epoch: uint64(t.Epoch), Owner: t.Owner, Ended: t.Ended, Start: append([]ownership.Extent{}, t.Start...)}
		if t.Ended {
			e.Cut = append([]ownership.Extent{}, t.Cut...)
		}
		out.Epochs = append(out.Epochs, e)
	}
	return out
}

// readOwnership is GET /v1/ownership: every unit that the register knows.
func (s *Server) readOwnership(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	units := []unitJSON{}
	if s.deps.Ownership != nil {
		known, err := s.deps.Ownership.Units()
		if err != nil {
			return err
		}
		for _, v := range known {
			units = append(units, showUnit(&v))
		}
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(struct {
		Units []unitJSON `json:"units"`
		Next  *string    `json:"next"`
		End   bool       `json:"end"`
	}{units, nil, true}), '\n'))
}

// topicOwnership is GET /v1/topics/{topic}/ownership: the unit that a record with
// a key belongs to in this region, and who owns it.
func (s *Server) topicOwnership(c *call) error {
	q, err := c.query("key")
	if err != nil {
		return err
	}
	t, err := s.deps.Topics.Topic(c.r.Context(), c.args[0])
	if err != nil {
		return err
	}
	var key []byte
	if q.Has("key") {
		key = []byte(q.Get("key"))
	}
	answer := struct {
		Topic    string  `json:"topic"`
		Domain   string  `json:"domain"`
		Mode     string  `json:"mode"`
		Unit     *string `json:"unit"`
		Owner    *string `json:"owner"`
		Epoch    *uint64 `json:"epoch"`
		State    *string `json:"state"`
		Writable bool    `json:"writable"` // here and now
	}{Topic: t.Name, Domain: t.Domain.Name, Mode: t.Domain.Mode.String()}
	unit, err := s.writer.unit(&t, key, nil)
	var invalid *problem
	if err != nil && !(errors.As(err, &invalid) && invalid.code == codeInvalidRecord) {
		return err
	}
	if err == nil { // else it takes headers to tell
		permits := s.writer.permits(&t)
		answer.Unit, answer.Writable = &unit, permits.mayWrite(key, nil) == nil
		if err := s.ownerOf(unit, &answer.Owner, &answer.Epoch, &answer.State); err != nil {
			return err
		}
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(answer), '\n'))
}

// ownerOf fills in what is known of a unit.
func (s *Server) ownerOf(unit string, owner **string, epoch **uint64, state **string) error {
	if s.deps.Ownership == nil {
		return nil
	}
	units, err := s.deps.Ownership.Units()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(units, func(v UnitView) bool { return v.Record.Unit == unit })
	if i < 0 {
		return nil
	}
	r := &units[i].Record
	e, st := uint64(r.Epoch), string(r.State)
	*owner, *epoch, *state = orNull(r.Owner), &e, &st
	return nil
}
