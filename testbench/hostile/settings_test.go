//go:build unix

package hostile_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/testbench/client"
)

// TestSettingsThatMustAgree: an instance with a shorter window does not start where the region
// ran with a longer one, and says how to go on; both regions warn of each other as long as
// they differ. Forged and malformed settings stop nothing.
func TestSettingsThatMustAgree(t *testing.T) {
	d := deploy(t, spec{pair: true, set: []string{"log.level=warn"}})
	forged := control.Settings{Region: 1, Values: []control.SettingValue{{ID: control.SettingWindow, Value: []byte{0, 0, 1, 0, 0, 0, 0, 0}}}}
	d.us.put(t, &kgo.Record{Topic: control.TopicControl, Key: forged.AppendKey(nil), Value: forged.AppendValue(nil)},
		&kgo.Record{Topic: control.TopicControl, Key: []byte{byte(control.TypeSettings), 1}, Value: []byte("garbage")})
	d.us.awaitWarning(t, warning.SettingsDisagree, "us")
	d.us.kill()
	d.us.start(t) // forged settings refuse nothing
	agrees := func(r *region) {
		t.Helper()
		r.await(t, "agreement", func(ctx context.Context) error {
			s, err := r.status(ctx)
			if i := slices.IndexFunc(s.Warnings, func(w warning.Warning) bool { return w.Code == warning.SettingsDisagree }); i >= 0 {
				err = fmt.Errorf("%v", s.Warnings[i])
			}
			return err
		})
	}
	agrees(d.us)
	agrees(d.eu)

	before := d.us.flags
	d.us.terminate(t)
	d.us.flags = append(slices.Clone(before), "--set", "idempotency.window=12h")
	d.us.launch(t)
	<-d.us.process.Done()
	if code := d.us.process.ExitCode(); code != 3 || !strings.Contains(tail(d.us.log), "idempotency.window is 12h0m0s here, not 24h0m0s") {
		t.Errorf("exit code %d, the log ends:\n%s", code, tail(d.us.log))
	}
	agrees(d.eu)
	d.us.flags = append(d.us.flags, "--accept-settings")
	d.us.start(t)
	d.us.awaitWarning(t, warning.SettingsDisagree, "eu")
	d.eu.awaitWarning(t, warning.SettingsDisagree, "us")
	d.us.mustStore(t, client.Write{Topic: "github", Key: "k", Value: []byte("1")})
	d.us.terminate(t)
	d.us.flags = before // a longer window again
	d.us.start(t)
	agrees(d.us)
	agrees(d.eu)
	for _, r := range d.regions() {
		text, err := os.ReadFile(r.log)
		if err != nil || strings.Contains(string(text), "0123456789abcdef") {
			t.Errorf("the log of %s has the secret, or none: %v", r.name, err)
		}
	}
}
