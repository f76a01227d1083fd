package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

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
		e := tenureJSON{Epoch: uint64(t.Epoch), Owner: t.Owner, Ended: t.Ended, Start: append([]ownership.Extent{}, t.Start...)}
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
	unit, err := s.writer.unit(t, key, nil)
	var invalid *problem
	if err != nil && !(errors.As(err, &invalid) && invalid.code == codeInvalidRecord) {
		return err
	}
	if err == nil { // else it takes headers to tell
		answer.Unit, answer.Writable = &unit, s.writer.mayWrite(t, key, nil) == nil
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

// maxCommand bounds the body of an ownership command, maxReason its reason: each
// unit's record has it, and so has each refusal.
const (
	maxCommand = 16 << 10
	maxReason  = 1000
)

// commandTime bounds the wait for the end of a command: some leases' worth.
const commandTime = 2 * time.Minute

// command is POST /v1/fence and POST /v1/unfence on the management listener: it
// answers when the command has ended, with the exit code of the command line.
func (s *Server) command(verb ownership.Verb) handler {
	return func(c *call) error {
		if _, err := c.query(); err != nil {
			return err
		}
		body, err := c.commandBody(verb)
		if err != nil {
			return err
		}
		if s.deps.Ownership == nil {
			return s.refuseCommand(ErrNoRegister)
		}
		// The plan goes on without its client, so its end is worth waiting for.
		ctx, cancel := context.WithTimeout(c.r.Context(), commandTime)
		defer cancel()
		result, err := s.deps.Ownership.Command(ctx, body)
		if err != nil {
			return s.refuseCommand(err)
		}
		c.w.Header().Set("Cache-Control", "no-store")
		return c.send(typeJSON, append(marshal(result), '\n'))
	}
}

// commandBody is what an ownership command asks for. Its type has to be said: a web
// page in a browser on this machine can send others unasked.
func (c *call) commandBody(verb ownership.Verb) (cmd ownership.Command, err error) {
	if media, err := c.contentType(); err != nil {
		return cmd, err
	} else if media != typeJSON {
		return cmd, newProblem(codeUnsupportedMediaType, "send the command with Content-Type %s", typeJSON)
	}
	c.readDeadline(bodyTime)
	dec := json.NewDecoder(io.LimitReader(c.r.Body, maxCommand))
	dec.DisallowUnknownFields()
	var body struct {
		Region string `json:"region"`
		Unit   string `json:"unit"`
		Reason string `json:"reason"`
	}
	if err := dec.Decode(&body); err != nil {
		return cmd, invalid(codeMalformed, atPointer("", "must be an object with region or unit, and reason"))
	}
	_, after := dec.Token()
	switch {
	case after != io.EOF:
		return cmd, invalid(codeMalformed, atPointer("", "more data follows the object"))
	case (body.Region == "") == (body.Unit == ""):
		return cmd, invalid(codeMalformed, atPointer("", "needs either region or unit, not both"))
	case verb == ownership.VerbFence && body.Reason == "":
		return cmd, invalid(codeMalformed, atPointer("/reason", "a fence needs a reason; the audit keeps it"))
	case len(body.Reason) > maxReason || strings.ContainsFunc(body.Reason, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return cmd, invalid(codeMalformed, atPointer("/reason", "must be one line of text of up to %d bytes", maxReason))
	}
	return ownership.Command{Verb: verb, Region: body.Region, Unit: body.Unit, Reason: body.Reason}, nil
}

func (s *Server) refuseCommand(err error) error {
	if errors.Is(err, ErrNoRegister) {
		return newProblem(codeNotFound, "this instance has no ownership register (nats is not configured), so nothing can be fenced")
	}
	return err
}
