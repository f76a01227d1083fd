package ownership_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// enormous is a sequence and an epoch that no register will ever have.
const enormous = 1 << 60

// rumours are records that the register never had, and speak against the machine.
func rumours(t *testing.T, seq, epoch uint64) map[string]ownership.Seen {
	t.Helper()
	say := func(subject string, record any) ownership.Seen {
		data, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		return ownership.Seen{Source: ownership.Rumoured, Subject: subject, Seq: seq, Data: data}
	}
	return map[string]ownership.Seen{
		"region": say(ownership.RegionSubject("us"), ownership.RegionRecord{
			Version: 1, Region: "us", ID: 1, Live: epoch, State: ownership.RegionFenced, By: "eu", Reason: "x",
		}),
		"region that is up": say(ownership.RegionSubject("us"), ownership.RegionRecord{
			Version: 1, Region: "us", ID: 1, Live: epoch, State: ownership.RegionUp, By: "eu",
		}),
		"unit": say(ownership.UnitSubject(unit), ownership.UnitRecord{
			Version: 1, Unit: unit, Epoch: event.Epoch(epoch), State: ownership.UnitFenced, Scope: ownership.ScopeUnit, Last: "us", By: "eu",
		}),
		"owner": say(ownership.UnitSubject(unit), ownership.UnitRecord{
			Version: 1, Unit: unit, Epoch: event.Epoch(epoch), State: ownership.UnitActive, Owner: "eu", Last: "eu", By: "eu",
		}),
	}
}

func (m *machine) holds() bool {
	_, err := m.c.Tokens().Grant(m.now, unit)
	return err == nil
}

// TestRumourIsDropped: what the register, asked after it, does not show in 5 s is
// dropped. Meanwhile nothing is held, and it is told to nobody.
func TestRumourIsDropped(t *testing.T) {
	for name, rumour := range rumours(t, enormous, enormous) {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.answers, m.recall = true, &ownership.Memory{}
			m.step(rumour)
			if m.holds() {
				t.Error("a rumour does not stop the instance")
			}
			m.pass(4 * time.Second)
			if m.holds() || len(m.c.Tokens().Unconfirmed) != 1 {
				t.Errorf("after 4 s: holds %t, unconfirmed %v", m.holds(), m.c.Tokens().Unconfirmed)
			}
			if seq, _ := m.c.Tokens().Newest(rumour.Subject); seq >= enormous {
				t.Errorf("it would tell others of revision %d", seq)
			}
			m.pass(4 * time.Second)
			if tokens := m.c.Tokens(); !m.holds() || tokens.FalseRumours != 1 || len(tokens.Unconfirmed) != 0 || tokens.Regressed != "" {
				t.Errorf("after 8 s: holds %t, %d false, unconfirmed %v, %s", m.holds(), tokens.FalseRumours, tokens.Unconfirmed, tokens.Regressed)
			}
			for seq := uint64(enormous); seq < enormous+20; seq++ { // another one at once, and again
				rumour.Seq = seq
				m.step(rumour)
				m.pass(time.Second)
				if !m.holds() {
					t.Fatal("a false rumour that is told again stops the instance again")
				}
			}
		})
	}
}

// TestRumourInNoAnswer: a register that does not answer confirms nothing and denies
// nothing. What was rumoured stops for as long as that lasts.
func TestRumourInNoAnswer(t *testing.T) {
	for name, rumour := range rumours(t, enormous, enormous) {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.recall = &ownership.Memory{}
			m.step(rumour)
			m.silent = true
			for range 60 {
				m.pass(time.Second)
				if m.holds() || m.c.Tokens().FalseRumours != 0 {
					t.Fatal("it was dropped, though the register has not answered")
				}
			}
			m.silent, m.answers = false, true
			m.pass(3 * time.Second)
			if !m.holds() {
				t.Error("nothing is held though the register answers again and shows nothing of it")
			}
		})
	}
}

// TestRumourThatComesTrue: what the register shows is known, and nothing is false about
// who told it.
func TestRumourThatComesTrue(t *testing.T) {
	m := newMachine(t)
	m.answers, m.recall = true, &ownership.Memory{}
	rumour := rumours(t, m.seq+1, 9)["region"]
	m.step(rumour)
	m.pass(3 * time.Second)
	m.seq++
	rumour.Source = ownership.Watched
	m.step(rumour)
	m.newest[rumour.Subject] = ownership.Seen{Source: ownership.Answered, Subject: rumour.Subject, Seq: m.seq, Data: rumour.Data}
	m.pass(10 * time.Second)
	tokens := m.c.Tokens()
	if m.holds() || tokens.FalseRumours != 0 || len(tokens.Unconfirmed) != 0 || tokens.Regions["us"].Record.State != ownership.RegionFenced {
		t.Errorf("holds %t: %+v", m.holds(), tokens)
	}
}

// TestRumourThatKafkaHas: a rumour that the register denies and the region's own Kafka
// has copied from it: the register has forgotten, and is not believed.
func TestRumourThatKafkaHas(t *testing.T) {
	all := rumours(t, 1000, 50)
	for name, memory := range map[string]ownership.Memory{
		"region": {Live: map[string]uint64{"us": 50}, Last: 1000},
		"unit":   {Epochs: map[string]event.Epoch{unit: 50}, Last: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.answers = true
			m.step(all[name])
			m.pass(10 * time.Second) // its Kafka does not answer
			if m.holds() || m.c.Regressed() != "" {
				t.Fatalf("nobody knows what is true: holds %t, %s", m.holds(), m.c.Regressed())
			}
			m.recall = &memory
			for end := m.now + time.Minute; m.c.Regressed() == "" && m.now < end; {
				m.pass(time.Second)
				m.step(ownership.Opened{Created: 1, Last: m.seq})
				if m.holds() {
					t.Fatal("it goes on under a register that has forgotten")
				}
			}
			if m.c.Regressed() == "" {
				t.Error("the register is believed")
			}
		})
	}
}

// TestWatchBehindKafka: the region's own Kafka has what the watch has not brought yet,
// since another instance copied it: that the register has shown nothing yet proves
// nothing.
func TestWatchBehindKafka(t *testing.T) {
	m := newMachine(t)
	m.answers, m.recall = true, &ownership.Memory{Live: map[string]uint64{"us": 9}, Last: m.seq + 5}
	rumour := rumours(t, m.seq+5, 9)["region"]
	m.step(rumour)
	m.pass(7 * time.Second)
	m.step(ownership.Opened{Created: 1, Last: m.seq + 5})
	m.pass(time.Second)
	if m.holds() || m.c.Regressed() != "" {
		t.Fatalf("holds %t, %s", m.holds(), m.c.Regressed())
	}
	rumour.Source = ownership.Watched
	m.step(rumour)
	m.pass(time.Second)
	if tokens := m.c.Tokens(); tokens.Regressed != "" || tokens.Regions["us"].Record.State != ownership.RegionFenced {
		t.Errorf("when the watch has come so far: %+v", tokens)
	}
}

// TestRumoursOfNothing: what is no record, of no region, or under another subject, is
// not listened to.
func TestRumoursOfNothing(t *testing.T) {
	good := rumours(t, enormous, enormous)
	for name, rumour := range map[string]ownership.Seen{
		"no record":       {Source: ownership.Rumoured, Subject: ownership.RegionSubject("us"), Seq: enormous, Data: []byte("{")},
		"another subject": {Source: ownership.Rumoured, Subject: ownership.RegionSubject("eu"), Seq: enormous, Data: good["region"].Data},
		"no subject":      {Source: ownership.Rumoured, Subject: "own.live.us.us-0", Seq: enormous, Data: good["unit"].Data},
		"another unit":    {Source: ownership.Rumoured, Subject: ownership.UnitSubject("x/us"), Seq: enormous, Data: good["unit"].Data},
		"an older epoch":  rumours(t, enormous, 0)["region"],
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.step(rumour)
			if !m.holds() || len(m.c.Tokens().Unconfirmed) != 0 {
				t.Errorf("holds %t, unconfirmed %v", m.holds(), m.c.Tokens().Unconfirmed)
			}
		})
	}
}
