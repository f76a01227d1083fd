package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/residency/policyfile"
)

// restrictable says why records of a topic cannot be denied one by one: under a
// conflict policy that is not restrictable, regions that were shown different
// records would not come to the same value.
func (n *Node) restrictable(topic string) error {
	d := n.policy.Domain(topic)
	policy := conflict.PolicyOf(d.Rule)
	if d.Kind == conflict.Entities && !policy.Restrictable {
		return fmt.Errorf("residency would deny single records, and domain %s keeps siblings (policy %s): give the domain policy lww, or the topic no rule that looks at records", d.Name, policy.Name)
	}
	return nil
}

// openResidency loads the policy that is configured, if one is.
func (n *Node) openResidency() error {
	p, err := n.cfg.Residency()
	if err != nil || p == nil {
		return err
	}
	n.residency = policyfile.New(policyfile.Config{
		Path: n.cfg.Policies.Residency, Policy: p, Regions: slices.Sorted(maps.Keys(n.cfg.Regions)), Logger: n.log,
	})
	return registerMetrics(n.deps.Registry, "residency", n.residency)
}

// guard is the node's, nil without a policy.
func (n *Node) guard() *residency.Guard {
	if n.residency == nil {
		return nil
	}
	return n.residency.Guard()
}

// residencyStatus is the state of the residency policy.
func (n *Node) residencyStatus() gateway.Residency {
	if n.residency == nil {
		return gateway.Residency{State: "off"}
	}
	st := n.residency.Guard().Status()
	return gateway.Residency{State: string(st.State), Name: st.Name, Revision: st.Revision, SHA256: st.SHA256}
}

// residencyWarnings is what an operator should know of the residency policy.
type residencyWarnings Node

// Warnings implements warner.
func (n *residencyWarnings) Warnings(out *warning.List) {
	if n.residency == nil {
		return
	}
	const subject = "residency"
	switch st := n.residency.Guard().Status(); {
	case st.State == residency.Stopped:
		out.Add(warning.ResidencyStopped, subject, "nothing leaves the region, since the policy file has not loaded since %s: %v", st.Since.UTC().Format(time.RFC3339), firstOf(st.Err))
	case st.Err != nil:
		out.Add(warning.ResidencyInvalid, subject, "the policy file does not load; revision %d stays in force until %s: %v", st.Revision,
			n.residency.Guard().Deadline().UTC().Format(time.RFC3339), firstOf(st.Err))
	}
}

// firstOf is the first of joined errors: a warning is one line.
func firstOf(err error) error {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		if all := many.Unwrap(); len(all) > 0 {
			return all[0]
		}
	}
	return err
}
