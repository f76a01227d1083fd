package gateway

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/geogate/geogate/router/ownership"
)

// maxCommand bounds the body of an ownership command, maxReason its reason: the
// record of each unit and each refusal repeat it.
const (
	maxCommand = 16 << 10
	maxReason  = 1000
)

// commandTime bounds the wait for the end of a command, which takes some leases.
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

// commandBody reads an ownership command. Its Content-Type must be JSON's: a web
// page in a browser on this machine can send other types without asking.
func (c *call) commandBody(verb ownership.Verb) (cmd ownership.Command, err error) {
	if media, err := c.contentType(); err != nil {
		return cmd, err
	} else if media != typeJSON {
		return cmd, newProblem(codeUnsupportedMediaType, "send the command with Content-Type %s", typeJSON)
	}
	c.readDeadline(c.partTime)
	raw, err := io.ReadAll(io.LimitReader(c.r.Body, maxCommand+1))
	switch {
	case err != nil:
		return cmd, errGone
	case len(raw) > maxCommand:
		return cmd, newProblem(codeBodyTooLarge, "a command has at most %d bytes", maxCommand)
	}
	body, err := parseCommand(raw)
	switch {
	case err != nil:
		return cmd, invalid(codeMalformed, atPointer("", "must be an object with region or unit, and reason, each once and a string: %v", err))
	case (body.Region == "") == (body.Unit == ""):
		return cmd, invalid(codeMalformed, atPointer("", "needs either region or unit, not both"))
	case verb == ownership.VerbFence && body.Reason == "":
		return cmd, invalid(codeMalformed, atPointer("/reason", "a fence needs a reason; the audit keeps it"))
	case len(body.Reason) > maxReason || strings.ContainsFunc(body.Reason, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return cmd, invalid(codeMalformed, atPointer("/reason", "must be one line of text of up to %d bytes", maxReason))
	}
	return ownership.Command{Verb: verb, Region: body.Region, Unit: body.Unit, Reason: body.Reason}, nil
}

// commandMembers are the members of a command.
type commandMembers struct{ Region, Unit, Reason string }

// parseCommand reads exactly one object: no member twice, none that is not known, names as
// they are written. A command is too dear to guess what was meant.
func parseCommand(raw []byte) (body commandMembers, err error) {
	r, err := newJSONReader(raw)
	if err != nil {
		return body, err
	}
	if r.kind() != '{' {
		return body, errors.New("not an object")
	}
	seen := map[string]bool{}
	err = r.members(func(name string) (err error) {
		into := map[string]*string{"region": &body.Region, "unit": &body.Unit, "reason": &body.Reason}[name]
		switch {
		case into == nil:
			return errors.New("a member that is not known")
		case seen[name]:
			return errors.New("a member twice")
		case r.kind() != '"':
			return errors.New("a value that is no string")
		}
		seen[name] = true
		*into, err = r.str()
		return err
	})
	if err == nil {
		err = r.end()
	}
	return body, err
}

func (s *Server) refuseCommand(err error) error {
	if errors.Is(err, ErrNoRegister) {
		return newProblem(codeNotFound, "this instance has no ownership register (nats is not configured), so nothing can be fenced")
	}
	return err
}
