package main

const (
	ownershipJoin     = "router/ownership/join.go"
	ownershipExtents  = "router/ownership/extents.go"
	ownershipCore     = "router/ownership/core.go"
	ownershipClaim    = "router/ownership/claim.go"
	ownershipLives    = "router/ownership/lives.go"
	ownershipPlan     = "router/ownership/plan.go"
	ownershipRetire   = "router/ownership/retire.go"
	ownershipRumours  = "router/ownership/rumours.go"
	ownershipWatchdog = "router/ownership/watchdog.go"
)

// ownershipMutants are deviations from the ownership protocol; they are played in
// the world of the register.
var ownershipMutants = []mutant{
	{"fence-not-tied", "region fence, then the units, W from the first, the two not tied together", []edit{
		{ownershipPlan, "	switch {\n	case next.State != p.holdsRegion() || next.Plan == \"\":\n", "	if p.rev > 0 {\n		p.stage = stageDrain\n		return\n	}\n	switch {\n	case next.State != p.holdsRegion() || next.Plan == \"\":\n"},
	}},
	{"claim-without-bump", "a claimant does not bump its own region's record when that region was the last owner", []edit{
		{ownershipClaim, "	if b := c.bumps[last]; b.rev <= u.rev {", "	if c.bumps[last].rev <= u.rev {\n		c.bumps[last] = bump{rev: u.rev + 1, at: now}\n	}\n	if b := c.bumps[last]; b.rev == 0 {"},
	}},
	{"fenced-from-read", "a plan takes 'region already FENCED' from a read", []edit{
		{ownershipPlan, "	next, expect := c.nextRegion(p.region, p.cmd.Reason)\n	next.State, next.Plan = RegionFenced", "	if r := c.regions[p.region]; r != nil && r.rec.State == RegionFenced {\n		p.rev, p.id, p.waitFrom, p.stage = r.rev, \"\", now, stageUnits\n		return\n	}\n	next, expect := c.nextRegion(p.region, p.cmd.Reason)\n	next.State, next.Plan = RegionFenced"},
		{ownershipPlan, "	switch {\n	case next.State != p.holdsRegion() || next.Plan == \"\":\n", "	if p.id == \"\" {\n		p.stage = stageDrain\n		return\n	}\n	switch {\n	case next.State != p.holdsRegion() || next.Plan == \"\":\n"},
	}},
	{"unit-fence-no-bump", "a unit's fence leaves out the bump", []edit{
		{ownershipPlan, "		p.stage = stageBump\n", "		p.rev, p.waitFrom, p.stage = p.units[p.cmd.Unit].rev, now, stageDrain\n"},
	}},
	{"bump-before-fence", "a unit's fence bumps before the unit is FENCED", []edit{
		{ownershipPlan, "p.stage, p.region = stageUnits, u.rec.Last", "p.stage, p.region = stageBump, u.rec.Last"},
		{ownershipPlan, "	if !p.fenced(p.cmd.Unit) {\n", "	if p.rev > 0 {\n"},
		{ownershipPlan, "		if p.fenced(p.cmd.Unit) { // else it begins again\n			p.rev, p.waitFrom, p.stage = seq, now, stageDrain\n", "		if p.rev == 0 {\n			p.rev, p.waitFrom, p.stage = seq, now, stageUnits\n"},
		{ownershipPlan, "		p.stage = stageBump\n", "		p.stage = stageDrain\n"},
	}},
	{"lease-from-retry", "the lease counts from the retry's send", []edit{
		{ownershipCore, "	tries   int\n", "	tries   int\n	sent    time.Duration\n"},
		{ownershipCore, "	changes uint64 // counts", "	sent    time.Duration\n	changes uint64 // counts"},
		{ownershipCore, "			o.tries++\n", "			o.tries++\n			o.sent = now\n"},
		{ownershipCore, "			o.then(now, ev.Seq, true)\n", "			c.sent = o.sent\n			o.then(now, ev.Seq, true)\n"},
		{ownershipClaim, "until: first + c.cfg.Lease.hold()", "until: max(first, c.sent) + c.cfg.Lease.hold()"},
	}},
	{"lease-from-answer", "the lease counts from the acknowledgement", []edit{
		{ownershipClaim, "until: first + c.cfg.Lease.hold()", "until: now + c.cfg.Lease.hold()"},
	}},
	{"wait-from-send", "W counts from the send of the write that voids the leases", []edit{
		{ownershipClaim, "	next, expect := c.nextRegion(region, reason)\n	c.write(", "	next, expect := c.nextRegion(region, reason)\n	sent := now\n	c.write("},
		{ownershipClaim, "bump{rev: seq, at: now}", "bump{rev: seq, at: sent}"},
	}},
	{"tokens-kept", "tokens are kept over a new liveness revision", []edit{
		{ownershipRumours, "		c.drop()\n		c.quit(\"lease\")\n	case r.unit", "		c.quit(\"lease\")\n	case r.unit"},
		{ownershipCore, "	if r.Region == c.cfg.Region {\n		c.drop()\n", "	if r.Region == c.cfg.Region {\n"},
		{ownershipClaim, "c.proofs[unit].rev == rev ||", "c.proofs[unit].rev != 0 && rev != 0 ||"},
		{"router/ownership/tokens.go", "if p.rev == c.lease.rev && p.mark <= c.savedMark {", "if p.mark <= c.savedMark {"},
	}},
	{"late-proof", "a proof that was sent under an earlier liveness revision counts", []edit{
		{ownershipClaim, "ok && c.lease.rev == rev && u.rec.State == UnitActive && u.rec.Owner == c.cfg.Region && u.rec.Epoch == next.Epoch", "ok && rev != 0 && u != nil"},
		{ownershipClaim, "proof{epoch: next.Epoch, rev: rev,", "proof{epoch: next.Epoch, rev: c.lease.rev,"},
	}},
	{"claim-beside-fence", "a claim counts though nothing proves that no fence of the region lies before it", []edit{
		{"router/ownership/tokens.go", "		if p.after >= c.lease.seq {\n", "		if p.after > 1<<60 {\n"},
	}},
	{"no-second-check", "the lease is not checked after the read-back", []edit{
		{"router/ownership/tokens.go", "	return ok && now < t.Until && epoch == g.Epoch && t.Live == g.Live", "	return ok && now < t.Until || epoch <= g.Epoch"},
	}},
	{"claim-without-wait", "an unfenced region claims without waiting W", []edit{
		{ownershipClaim, "} else if c.seen < b.rev || now < b.at+c.wait(last) {", "} else if now < b.at {"},
	}},
	{"seal-without-others", "a cut at the end does not wait for the other instance", []edit{
		{ownershipLives, "			all = false\n", "			all = true\n"},
	}},
	{"start-before-revision", "the start is listed before the revision that the claim is conditional on", []edit{
		{ownershipClaim, "	if l.rev != u.rev || !l.asked {", "	if !l.asked {"},
		{ownershipClaim, "	delete(c.starts, unit)\n	p.record", "	p.record"},
		{ownershipClaim, "	if l.next != nil {", "	if l.next != nil && l.next.rev == u.rev {"},
		{ownershipClaim, "l.ends); len(wrong) > 0 {", "l.ends); len(wrong) < 0 {"},
	}},
	{"wait-without-drift", "W leaves out (1+r)/(1-r)", []edit{
		{"router/ownership/lease.go", "	return hold * (100 + clockError) / (100 - clockError)", "	return hold"},
	}},
	{"drift-halved", "W allows for half of what clocks may err", []edit{
		{"router/ownership/lease.go", "	return hold * (100 + clockError) / (100 - clockError)", "	return hold * (200 + clockError) / (200 - clockError)"},
	}},
	{"epoch-regression-ignored", "a register whose epochs are below those that were seen is believed", []edit{
		{ownershipCore, "			if epoch < remembered[unit] {", "			if false {"},
	}},
	{"register-again-believed", "a register that was created again is believed", []edit{
		{ownershipCore, "	c.recreated = c.mark.Created != 0 && ev.Created != c.mark.Created", "	c.recreated = c.mark.Created == -1"},
	}},
	{"shorter-register-believed", "a register that is shorter than what was seen is believed", []edit{
		{ownershipCore, "	case ev.Last < max(c.mark.Seq, c.seen, c.recalledLast):", "	case ev.Last > 1<<60:"},
	}},
	{"repair-reuses-revisions", "a repaired register gives revisions again that were seen before", []edit{
		{"router/ownership/repair.go", "	if c.endsAt < beyond {", "	if c.endsAt > beyond {"},
	}},
	{"mark-not-awaited", "an epoch is used before the mark that holds it is on disk", []edit{
		{"router/ownership/tokens.go", "if p.rev == c.lease.rev && p.mark <= c.savedMark {", "if p.rev == c.lease.rev {"},
	}},
	{"blind-not-noticed", "own renewals that the watch does not bring back are not missed", []edit{
		{ownershipWatchdog, "	if len(c.awaitedRenewals) == 0 || ", "	if len(c.awaitedRenewals) < 1000 || "},
	}},
	{"suspend-unnoticed", "the lease's clock stops while the machine is suspended, and nobody tells", []edit{
		{"router/ownership/lease.go", "{ return t.Elapsed }", "{ return t.Running }"},
		{ownershipCore, "	case Slept:\n		c.drop()\n", "	case Slept:\n"},
	}},
	{"proof-beside-fence", "a proof counts though nothing proves that the unit was the region's before a fence of the region", []edit{
		{ownershipClaim, "mark: c.markOf(next.Unit, next.Epoch), after: expect}", "mark: c.markOf(next.Unit, next.Epoch)}"},
	}},
	{"lives-by-name", "a fence knows instances by name: a later process's record stands for all", []edit{
		{ownershipLives, "	n.lives[r.Life] = l\n", "	n.lives = map[string]life{r.Life: l}\n"},
	}},
	{"drained-at-once", "a process that has another one's name drains without outwaiting that one", []edit{
		{ownershipClaim, "	if !c.alone(now) {\n", "	if c.name.claimed == 0 {\n"},
	}},
	{"gone-unconditional", "a process that stops says that nobody under its name holds anything", []edit{
		{ownershipLives, "	if n.writer != c.cfg.Life || !c.alone(now) {\n", "	if c.name.claimed == 0 {\n"},
		{ownershipLives, "r.Gone, r.Hold = true, 0\n", "r.Gone, r.Hold, r.After = true, 0, n.newest\n"},
		{ownershipLives, "\"gone\", Write{Subject: subject, Data: encode(r), Guard: subject, Expect: n.newest}", "\"gone\", Write{Subject: subject, Data: encode(r)}"},
	}},
	{"name-taken-ignored", "a process goes on when another one has taken its name over", []edit{
		{ownershipLives, "		c.yield(r.Life)\n", "		own.known[r.Life] = seq\n"},
	}},
	{"rumour-believed", "what another instance says of the register is taken as the register's", []edit{
		{ownershipCore, "		c.hear(now, ev)\n", "		c.askedRegister(now, ev)\n"},
	}},
	{"rumour-kept", "a rumour that the register denies is not dropped", []edit{
		{ownershipRumours, "			denied = true\n", "			denied = denied && r.denied\n"},
	}},
	{"start-from-watch", "a record that was read makes its owner hold the unit", []edit{
		{ownershipCore, "	if p, ok := c.proofs[r.Unit]; ok && ", "	if r.State == UnitActive && r.Owner == c.cfg.Region && c.lease.rev != 0 {\n		c.proofs[r.Unit] = proof{epoch: r.Epoch, rev: c.lease.rev}\n	}\n	if p, ok := c.proofs[r.Unit]; ok && "},
	}},
	{"record-before-extents", "a unit's record is written before the starts that it names are stored", []edit{
		{ownershipClaim, "	if !c.store(now, unit, p.names) {\n		return\n	}\n", ""},
	}},
	{"extents-dropped-early", "starts and cuts that stand outside are dropped although the unit's record names them", []edit{
		{ownershipExtents, "slices.Max(set.epochs) < u.Epoch && !named[name.sum]", "slices.Max(set.epochs) < u.Epoch && (named[name.sum] || len(named) >= 0)"},
	}},
	{"join-unproven", "epochs are joined although an orphan lies between them", []edit{
		{ownershipJoin, "l.To.Compare(ends[at]) < 0 || from[at].Compare(l.From) < 0", "l.To.Compare(ends[at]) < 0 || from[at].Next < 0"},
	}},
	{"join-unread", "epochs are joined before the region has judged its log so far", []edit{
		{ownershipJoin, "l.To.Compare(ends[at]) < 0 || from", "from"},
	}},
	{"extents-pushed-out", "what a unit's newest record names is pushed out of the register", []edit{
		{ownershipExtents, "s[0].epoch < newest.Epoch && !newest.named()[s[0].sum]", "s[0].epoch < newest.Epoch"},
	}},
	{"extents-pushed-out-early", "what a record is about to name is pushed out of the register", []edit{
		{ownershipExtents, "s[0].epoch < newest.Epoch && !newest.named()[s[0].sum]", "s[0].epoch <= newest.Epoch && !newest.named()[s[0].sum]"},
	}},
	{"repairs-share-slots", "what repairs store of a unit has one slot, from which it may be pushed out before a record names it", []edit{
		{ownershipExtents, "\"%s-%.16s-%d\", repairSlot,", "\"%s%.0s%.0d\", repairSlot,"},
	}},
	{"retired-cuts", "a region that is retired sets the cut of a fence that it had started", []edit{
		{ownershipPlan, "	if !u.rec.Resolved() || !p.mayCut(u) {\n", "	if !u.rec.Resolved() {\n"},
	}},
	{"cut-before-watch", "a region that has not heard that it was retired and returned sets a cut", []edit{
		{ownershipRetire, "	return p.c.seen >= u.rev && !p.c.away()", "	return !p.c.away()"},
	}},
	{"retired-from-old", "a unit's record names a region as retired for somebody who has not heard of its return", []edit{
		{ownershipRetire, "	if expect > 0 && c.seen >= expect {\n", "	if expect > 0 {\n"},
	}},
	{"return-unwritten", "a return does not write the records of units that name the region no more", []edit{
		{ownershipRetire, "		if u.rev > rev && !slices.Contains(", "		if !slices.Contains("},
	}},
	{"return-at-once", "a region that is returned may fence others before it has caught up", []edit{
		{ownershipRetire, "	next.State, next.Plan = RegionReturned, c.nextID()\n", "	next.State, next.Plan = RegionFenced, c.nextID()\n"},
	}},
	{"retired-unfenced", "a region that is retired is unfenced", []edit{
		{ownershipPlan, "	if r := p.regionOf(); r.rec.away() {\n		p.answer(ResultPrecondition, fmt.Sprintf(\"region %s %s\", p.region, r.rec.notUp()))\n		return\n	}\n", ""},
	}},
	{"extents-slot-unguarded", "extents are stored without looking at what else was stored there", []edit{
		{ownershipExtents, "Data: encode(r), Guard: subject, Expect: expect}", "Data: encode(r)}"},
	}},
}
