package txn

import (
	"math"
	"testing"
)

func TestRegain(t *testing.T) {
	me := identity{id: 7, epoch: 3}
	at := func(epoch int16, state string) described { return described{identity{id: 7, epoch: epoch}, state} }
	opened, refused, asked := held{identity: me, opened: true}, held{identity: me, opened: true, refused: true}, held{identity: me, asked: true}
	last := held{identity: identity{id: 7, epoch: math.MaxInt16 - 1}, opened: true}
	late, restarted := refused, refused
	late.outlasted, restarted.away = true, true
	for name, c := range map[string]struct {
		held held
		is   described
		want identity // zero: another holds it
	}{
		"nothing happened":                                 {held{identity: me}, at(3, "CompleteCommit"), me},
		"own transaction is open":                          {opened, at(3, "Ongoing"), me},
		"own commit, answer lost":                          {opened, at(4, "CompleteCommit"), identity{id: 7, epoch: 4}},
		"own abort is being carried out":                   {opened, at(4, "PrepareAbort"), identity{id: 7, epoch: 4}},
		"aborted after the time-out":                       {late, at(4, "CompleteAbort"), identity{id: 7, epoch: 4}},
		"own commit, answer lost, state not kept":          {opened, at(4, "Empty"), me},
		"aborted after the time-out, state not kept":       {late, at(4, "Empty"), me},
		"aborted by the start of a broker, state not kept": {restarted, at(4, "Empty"), me},
		"a broker was away, and another writes":            {restarted, at(4, "Ongoing"), identity{}},
		"a broker was away, and another has initialised":   {restarted, at(5, "Empty"), identity{}},
		"aborted by another, state not kept":               {refused, at(4, "Empty"), identity{}},
		"another without a transaction":                    {held{identity: me}, at(4, "Empty"), identity{}},
		"another, which writes":                            {opened, at(4, "Ongoing"), identity{}},
		"another wrote while nothing was open":             {held{identity: me}, at(4, "CompleteCommit"), identity{}},
		"another has aborted and initialised":              {opened, at(5, "Empty"), identity{}},
		"another for long":                                 {late, at(900, "CompleteCommit"), identity{}},
		"own initialisation, answer lost":                  {asked, at(4, "Empty"), me},
		"own initialisation, then another":                 {asked, at(4, "Ongoing"), identity{}},
		"the coordinator has lost its newest records":      {opened, at(2, "CompleteCommit"), identity{id: 7, epoch: 2}},
		"another producer id":                              {opened, described{identity{id: 8}, "CompleteCommit"}, identity{}},
		"own commit with the last epoch":                   {last, described{identity{id: 8}, "CompleteCommit"}, identity{id: 8}},
		"after the last epoch, and another since":          {last, described{identity{id: 8, epoch: 1}, "Empty"}, identity{}},
		"after the last epoch, and another writes now":     {last, described{identity{id: 8}, "Ongoing"}, identity{}},
	} {
		got, ok := regain(c.held, c.is)
		if got != c.want || ok != (c.want != identity{}) {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, c.want)
		}
	}
}
