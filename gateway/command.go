package gateway

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
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

// reportTime bounds the questions for a report, which leaves out what is not answered.
const reportTime = 10 * time.Second

// command is POST /v1/fence, /v1/unfence, /v1/retire and /v1/return on the management listener: it
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

// registerReport is GET /v1/register on the management listener.
func (s *Server) registerReport(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	if s.deps.Ownership == nil {
		return s.refuseCommand(ErrNoRegister)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), reportTime)
	defer cancel()
	report, err := s.deps.Ownership.Report(ctx)
	if err != nil {
		return s.refuseCommand(err)
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(report), '\n'))
}

// registerAct is POST /v1/register/abandon, repair and replace on the management listener.
func (s *Server) registerAct(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	act := ownership.RegisterAct{Verb: ownership.RegisterVerb(c.args[0])}
	members := map[string]*string{"reason": &act.Reason, "dry_run": new(string)}
	switch act.Verb {
	case ownership.RegisterAbandon, ownership.RegisterRepair:
	case ownership.RegisterReplace:
		members["server"] = &act.Server
	default:
		return newProblem(codeNotFound, "nothing is at %s", c.r.URL.Path)
	}
	if err := c.commandMembers(members); err != nil {
		return err
	}
	switch *members["dry_run"] {
	case "", "false":
	case "true":
		act.DryRun = true
	default:
		return invalid(codeMalformed, atPointer("/dry_run", `must be "true" or "false"`))
	}
	switch {
	case act.Reason == "" && !act.DryRun:
		return invalid(codeMalformed, atPointer("/reason", "what is done to the register needs a reason; the audit keeps it"))
	case act.Verb == ownership.RegisterReplace && act.Server == "":
		return invalid(codeMalformed, atPointer("/server", "must name the server that is replaced"))
	}
	if s.deps.Ownership == nil {
		return s.refuseCommand(ErrNoRegister)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), commandTime)
	defer cancel()
	plan, err := s.deps.Ownership.Act(ctx, act)
	if err != nil {
		return s.refuseCommand(err)
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(plan), '\n'))
}

// commandMembers reads the members of a command, each a string that may be left out. Its
// Content-Type must be JSON's: a web page in a browser on this machine can send other
// types without asking.
func (c *call) commandMembers(members map[string]*string) error {
	if media, err := c.contentType(); err != nil {
		return err
	} else if media != typeJSON {
		return newProblem(codeUnsupportedMediaType, "send the command with Content-Type %s", typeJSON)
	}
	c.readDeadline(c.partTime)
	raw, err := io.ReadAll(io.LimitReader(c.r.Body, maxCommand+1))
	switch {
	case err != nil:
		return errGone
	case len(raw) > maxCommand:
		return newProblem(codeBodyTooLarge, "a command has at most %d bytes", maxCommand)
	}
	if err := parseCommand(raw, members); err != nil {
		names := slices.Sorted(maps.Keys(members))
		return invalid(codeMalformed, atPointer("", "must be an object with %s, each at most once and a string: %v", strings.Join(names, ", "), err))
	}
	if reason := *members["reason"]; len(reason) > maxReason || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return invalid(codeMalformed, atPointer("/reason", "must be one line of text of up to %d bytes", maxReason))
	}
	return nil
}

// commandBody reads an ownership command.
func (c *call) commandBody(verb ownership.Verb) (cmd ownership.Command, err error) {
	cmd.Verb = verb
	if err := c.commandMembers(map[string]*string{"region": &cmd.Region, "unit": &cmd.Unit, "reason": &cmd.Reason}); err != nil {
		return cmd, err
	}
	switch {
	case (cmd.Region == "") == (cmd.Unit == ""):
		return cmd, invalid(codeMalformed, atPointer("", "needs either region or unit, not both"))
	case cmd.Region == "" && (verb == ownership.VerbRetire || verb == ownership.VerbReturn):
		return cmd, invalid(codeMalformed, atPointer("/unit", "a region is retired or returned, not a unit"))
	case (verb == ownership.VerbFence || verb == ownership.VerbRetire) && cmd.Reason == "":
		return cmd, invalid(codeMalformed, atPointer("/reason", "a fence or a retirement needs a reason; the audit keeps it"))
	}
	return cmd, nil
}

// parseCommand reads exactly one object: no member twice, none that is not known, names as
// they are written. A command is too dear to guess what was meant.
func parseCommand(raw []byte, members map[string]*string) error {
	r, err := newJSONReader(raw)
	if err != nil {
		return err
	}
	if r.kind() != '{' {
		return errors.New("not an object")
	}
	seen := map[string]bool{}
	err = r.members(func(name string) (err error) {
		into := members[name]
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
	return err
}

func (s *Server) refuseCommand(err error) error {
	if errors.Is(err, ErrNoRegister) {
		return newProblem(codeNotFound, "this instance has no ownership register (nats is not configured), so nothing can be fenced")
	}
	return err
}
