package gateway

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"
)

// ForgetResult is the answer of POST /v1/topics/{topic}/forget: Exit is the exit code of
// the command.
type ForgetResult struct {
	Exit  int    `json:"exit"`
	Topic string `json:"topic"`
	// Deleted are the derived topics that were deleted.
	Deleted []string `json:"deleted"`
	Detail  string   `json:"detail"`
}

// Exit codes of ForgetResult, those of the command line.
const (
	forgotten    = 0
	notForgotten = 3
)

// forgetTime bounds the deletion of two topics.
const forgetTime = time.Minute

// forget is POST /v1/topics/{topic}/forget on the management listener, with an empty
// object.
func (s *Server) forget(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	if err := c.emptyCommand(); err != nil {
		return err
	}
	topic := c.args[0]
	if s.deps.Forgetter == nil {
		return newProblem(codeNotFound, "this instance forgets no topics")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), forgetTime)
	defer cancel()
	result := ForgetResult{Topic: topic}
	deleted, err := s.deps.Forgetter.Forget(ctx, topic)
	switch {
	case errors.Is(err, ErrNotForgotten):
		result.Exit, result.Detail = notForgotten, strings.TrimPrefix(err.Error(), ErrNotForgotten.Error()+": ")
	case err != nil:
		return err
	default:
		result.Exit, result.Detail = forgotten, "forgotten; deleted: "+strings.Join(deleted, ", ")
	}
	result.Deleted = append([]string{}, deleted...)
	c.w.Header().Set("Cache-Control", "no-store")
	return c.send(typeJSON, append(marshal(result), '\n'))
}

// emptyCommand wants the body of a command without members: like every command's it must
// be JSON, so that no web page can have a browser send it.
func (c *call) emptyCommand() error {
	if media, err := c.contentType(); err != nil {
		return err
	} else if media != typeJSON {
		return newProblem(codeUnsupportedMediaType, "send the command with Content-Type %s", typeJSON)
	}
	c.readDeadline(c.partTime)
	raw, err := io.ReadAll(io.LimitReader(c.r.Body, maxCommand+1))
	if err != nil {
		return errGone
	}
	if strings.TrimSpace(string(raw)) != "{}" {
		return invalid(codeMalformed, atPointer("", "must be an empty object"))
	}
	return nil
}
