package world

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/geogate/geogate/internal/embed"
	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/natscluster"
)

// lease is about as short as a lease may be, so that a test need not wait long for
// its end.
var lease = ownership.LeaseConfig{Duration: 12 * time.Second, Margin: 100 * time.Millisecond, Renew: 300 * time.Millisecond, Timeout: time.Second}

// patienceWithRegister is patience where leases are waited for, a renewal of which a
// loaded machine may lose.
const patienceWithRegister = 3 * time.Minute

// openRegister starts the ownership register of the world: one server that all
// instances reach, each by a door of its own.
func (w *World) openRegister() (err error) {
	if !w.options.Register {
		return nil
	}
	w.register, err = embed.StartNATS(embed.NATS{Name: "ctl", StoreDir: filepath.Join(w.dir, "nats")})
	if err != nil {
		return fmt.Errorf("start register: %w", err)
	}
	return nil
}

// useRegister makes the register an instance's.
func (in *Instance) useRegister(c *node.Config, d *node.Deps) {
	w := in.region.w
	if w.register == nil {
		return
	}
	if in.door == nil {
		in.door = natscluster.NewDoor(w.register.Dialer().InProcessConn)
	}
	c.NATS = node.NATSConfig{Mode: "solo", Embedded: &node.EmbeddedNATS{Name: "ctl"}, Lease: lease}
	d.NATS = in.door
}

// CutRegister makes the ownership register unreachable for a region: nothing
// arrives any more, and no connection tells.
func (w *World) CutRegister(region string) {
	for _, in := range w.Region(region).instances {
		in.CutRegister()
	}
}

// CutRegister makes the ownership register unreachable for one instance.
func (in *Instance) CutRegister() { in.door.Shut() }

// HealRegister takes CutRegister back.
func (w *World) HealRegister(region string) {
	for _, in := range w.Region(region).instances {
		in.door.Open()
	}
}

// Fence has a gateway of the region fence a region, or a unit if that has a slash
// or is no region's name. It waits for the end, whatever exit code that has.
func (r *Region) Fence(ctx context.Context, what, reason string) (ownership.Result, error) {
	return r.command(ctx, "/v1/fence", what, reason)
}

// Unfence takes a fence back.
func (r *Region) Unfence(ctx context.Context, what string) (ownership.Result, error) {
	return r.command(ctx, "/v1/unfence", what, "")
}

// Retire has the other regions wait no more for a region, and Return again.
func (r *Region) Retire(ctx context.Context, region, reason string) (ownership.Result, error) {
	return r.command(ctx, "/v1/retire", region, reason)
}

// Return takes a retirement back.
func (r *Region) Return(ctx context.Context, region string) (ownership.Result, error) {
	return r.command(ctx, "/v1/return", region, "")
}

// RegisterAct has a gateway of the region do something to the register.
func (r *Region) RegisterAct(ctx context.Context, verb ownership.RegisterVerb, members map[string]string) (plan ownership.RegisterPlan, err error) {
	raw, err := json.Marshal(members)
	if err != nil {
		return plan, err
	}
	raw, _, err = r.Client().DoManagement(ctx, http.MethodPost, "/v1/register/"+string(verb), raw, http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return plan, err
	}
	return plan, client.Decode(raw, &plan)
}

func (r *Region) command(ctx context.Context, path, what, reason string) (result ownership.Result, err error) {
	body := map[string]string{"unit": what, "reason": reason}
	if _, ok := r.w.ID(what); ok {
		body = map[string]string{"region": what, "reason": reason}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return result, err
	}
	raw, _, err = r.Client().DoManagement(ctx, http.MethodPost, path, raw, http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return result, err
	}
	return result, client.Decode(raw, &result)
}
