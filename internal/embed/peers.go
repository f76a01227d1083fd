package embed

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNoLeader is returned where the cluster has no leader that answers.
var ErrNoLeader = errors.New("embed: the nats cluster has no leader that answers")

// systemUser is the name under which a connection of this process reaches the server's
// system account. Nobody else can connect.
const systemUser = "geogate-system"

// Peer is a server that the cluster counts as its own, running or not.
type Peer struct {
	// Name is "" for one that has not been heard of since the leader started.
	Name string
	// ID is the cluster's, see [PeerID].
	ID string
	// Leader: it leads the cluster. Current: it has all that was written. Offline: it is
	// not connected.
	Leader, Current, Offline bool
	// Active is how long ago it was last heard of; 0 for the leader.
	Active time.Duration
}

// PeerID is the id that a cluster has for a server's name.
func PeerID(name string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(name))
	id := make([]byte, 8)
	for i := range id {
		id[i] = digits[int(sum[i])%len(digits)]
	}
	return string(id)
}

// Peers asks the cluster's leader which servers it has.
func (s *NATSServer) Peers(ctx context.Context) ([]Peer, error) {
	b, err := s.system(ctx, "$SYS.REQ.SERVER.PING.JSZ", `{"leader_only":true}`)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Meta *struct {
				Leader   string
				Replicas []struct {
					Name, Peer       string
					Current, Offline bool
					Active           time.Duration
				}
			} `json:"meta_cluster"`
		}
	}
	if err := json.Unmarshal(b, &answer); err != nil || answer.Data.Meta == nil {
		return nil, fmt.Errorf("ask for the servers of the nats cluster: %w, %.200s", ErrNoLeader, b)
	}
	meta := answer.Data.Meta
	peers := []Peer{{Name: meta.Leader, ID: PeerID(meta.Leader), Leader: true, Current: true}}
	for _, r := range meta.Replicas {
		if PeerID(r.Name) != r.Peer {
			r.Name = "" // the server puts a text there if it does not know the name
		}
		peers = append(peers, Peer{Name: r.Name, ID: r.Peer, Current: r.Current, Offline: r.Offline, Active: r.Active})
	}
	return peers, nil
}

// RemovePeer takes a server out of the cluster for good: streams that had a copy there
// get one at another server.
func (s *NATSServer) RemovePeer(ctx context.Context, name string) error {
	b, err := s.system(ctx, "$JS.API.SERVER.REMOVE", fmt.Sprintf(`{"peer_id":%q}`, PeerID(name)))
	if err != nil {
		return err
	}
	var answer struct {
		Success bool
		Error   *struct{ Description string }
	}
	switch err := json.Unmarshal(b, &answer); {
	case err != nil:
		return fmt.Errorf("remove nats server %s: %w", name, err)
	case answer.Error != nil:
		return fmt.Errorf("remove nats server %s: %s", name, answer.Error.Description)
	case !answer.Success:
		return fmt.Errorf("remove nats server %s: the answer is %.200s", name, b)
	}
	return nil
}

// system asks something in the server's system account and gives the first answer. It
// speaks the protocol by hand: the client library is the register's alone.
func (s *NATSServer) system(ctx context.Context, subject, body string) ([]byte, error) {
	conn, err := s.srv.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("ask nats for %s: %w", subject, err)
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	const inbox = "_INBOX.geogate.system"
	question := fmt.Sprintf("CONNECT {\"verbose\":false,\"pedantic\":false,\"user\":%q,\"lang\":\"go\",\"version\":\"1\",\"protocol\":1,\"headers\":false}\r\n"+
		"SUB %s 1\r\nPUB %s %s %d\r\n%s\r\n", systemUser, inbox, subject, inbox, len(body), body)
	// Beside the reading: the connection has no buffer, and the server begins by writing.
	sending.Go(func() { _, _ = io.WriteString(conn, question) }) // what fails shows as an answer that does not come
	b, err := firstMessage(bufio.NewReader(conn), conn)
	if err != nil && ctx.Err() != nil {
		err = ErrNoLeader
	}
	if err != nil {
		return nil, fmt.Errorf("ask nats for %s: %w", subject, err)
	}
	return b, nil
}

// firstMessage reads what a server sends to its first message.
func firstMessage(in *bufio.Reader, out io.Writer) ([]byte, error) {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "-ERR"):
			return nil, errors.New(strings.TrimSpace(line))
		case len(words) == 1 && words[0] == "PING":
			if _, err := io.WriteString(out, "PONG\r\n"); err != nil {
				return nil, err
			}
		case len(words) >= 4 && words[0] == "MSG":
			n, err := strconv.Atoi(words[len(words)-1])
			if err != nil || n < 0 || n > 8<<20 {
				return nil, fmt.Errorf("a message of %q bytes", words[len(words)-1])
			}
			b := make([]byte, n)
			_, err = io.ReadFull(in, b)
			return b, err
		}
	}
}
