package mirror

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// FuzzOwnershipTopic: whatever lies in _geogate.ownership or _geogate.owners, it is taken
// or refused.
func FuzzOwnershipTopic(f *testing.F) {
	for _, s := range []string{
		`{"v":1,"revision":13,"record":{"v":1,"unit":"air/eu","epoch":33,"owner":"","state":"FENCED","by":"us","prev":12,"epochs":null}}`,
		`{"v":1,"revision":13,"record":{"v":1,"region":"eu","id":2,"live_epoch":1,"state":"UP","by":"us"}}`,
		`{"v":1,"revision":13,"record":{"v":1,"abandoned":true,"by":"us-0"}}`, `{"v":1,"revision":13,"record":{"v":1}}`, `{"v":2}`, `{"v":1,"revision":-1}`, `null`, "\x01", ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		epochs := map[string]event.Epoch{}
		key := registerKey
		if t, err := readTestimony(value); err == nil {
			if u, err := ownership.DecodeUnit(t.Record); err == nil && u.Unit != "" {
				key = u.Unit
			} else if r, err := ownership.DecodeRegion(t.Record); err == nil && r.Region != "" {
				key = "region:" + r.Region
			}
		}
		memory := ownership.Memory{Epochs: epochs, Live: map[string]uint64{}}
		if err := take(key, value, &memory); err != nil && len(epochs)+len(memory.Live) > 0 {
			t.Errorf("%q is refused, %v, and taken: %+v", value, err, memory)
		}
		if _, u, err := ParseTestimony(value); err == nil && u.Epoch <= mostEpoch && key == u.Unit && memory.Last > 0 && epochs[u.Unit] != u.Epoch {
			t.Errorf("%q names epoch %d of %s, taken are %v", value, u.Epoch, u.Unit, epochs)
		}
	})
}
