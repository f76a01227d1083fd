package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	defaultGateway = "http://127.0.0.1:18091"
	// askTimeout bounds a question to a gateway, maxAnswer its answer: a command
	// that people wait for must end.
	askTimeout = 15 * time.Second
	maxAnswer  = 64 << 20
)

// gatewayFlag is the address of the management listener that a command asks.
type gatewayFlag struct{ address string }

func (g *gatewayFlag) bind(cmd *cobra.Command, env environment) {
	cmd.Flags().StringVar(&g.address, "gateway", cmp.Or(env["GATEWAY"], defaultGateway),
		"`URL` of the gateway's management listener ($GEOGATE_GATEWAY)")
}

// get asks the gateway for a path, with a query if it has one, and gives the
// answer's body. A gateway that does not answer, or not as one, gives the code for
// unreachable.
func (g *gatewayFlag) get(cmd *cobra.Command, path string) ([]byte, error) {
	return g.ask(cmd, http.MethodGet, path, nil, askTimeout)
}

// commandTimeout bounds a command that the gateway carries out: it answers by
// itself before that.
const commandTimeout = 150 * time.Second

// post has the gateway do something.
func (g *gatewayFlag) post(cmd *cobra.Command, path string, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return g.ask(cmd, http.MethodPost, path, b, commandTimeout)
}

func (g *gatewayFlag) ask(cmd *cobra.Command, method, path string, send []byte, timeout time.Duration) ([]byte, error) {
	base, err := url.Parse(g.address)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, exitWith(exitUsage, "--gateway (or $GEOGATE_GATEWAY) %q is not an http URL; want the address of a management listener, like %s", g.address, defaultGateway)
	}
	path, query, _ := strings.Cut(path, "?")
	to := base.JoinPath(path)
	to.RawQuery = query
	req, err := http.NewRequestWithContext(cmd.Context(), method, to.String(), bytes.NewReader(send))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if send != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	client := http.Client{Timeout: timeout}
	resp, err := client.Do(req)
	if err != nil {
		return nil, exitWith(exitUnreachable, "gateway cannot be reached: %w; set --gateway or $GEOGATE_GATEWAY to its management listener, like %s", err, defaultGateway)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, exitWith(exitUnreachable, "read the gateway's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, problemError(resp, body)
	}
	return body, nil
}

// problemError makes an error of an answer that is none of the kind asked for.
func problemError(resp *http.Response, body []byte) error {
	var problem struct{ Title, Detail, Code string }
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") && json.Unmarshal(body, &problem) == nil {
		code := exitInternal
		switch {
		case resp.StatusCode == http.StatusBadRequest:
			code = exitUsage
		case resp.StatusCode == http.StatusServiceUnavailable:
			code = exitUnreachable
		case resp.StatusCode == http.StatusNotFound, // no register, no such thing there
			resp.StatusCode == http.StatusConflict: // its state does not allow it
			code = exitPrecondition
		}
		return exitWith(code, "gateway answers %s: %s: %s", cell(problem.Code), cell(problem.Title), cell(problem.Detail))
	}
	return exitWith(exitUnreachable, "the server there answered %s; is it a gateway's management listener?", resp.Status)
}

// decodeAnswer reads a JSON answer. Members that this version does not know are
// ignored, so that a newer gateway can be asked.
func decodeAnswer(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return exitWith(exitUnreachable, "decode the gateway's answer: %w", err)
	}
	return nil
}

// checkOutput refuses an unknown value of -o.
func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return exitWith(exitUsage, "unknown output %q, want text or json", output)
	}
	return nil
}

// orUnknown shows a number that may be unknown: 0 and unknown are different.
func orUnknown[T any](format string, v *T) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf(format, *v)
}
