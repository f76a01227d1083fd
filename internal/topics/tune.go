package topics

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
)

// tune gives internal topics the settings that keep them short, also those that an earlier
// version has made. What was set for a topic itself is an operator's and stays, and what a
// broker does not know is left out. It is worth a warning if that cannot be done, and no
// reason not to start.
func (c *Catalogue) tune(ctx context.Context, all []spec) {
	var names []string
	for _, s := range all {
		if len(s.tuned) > 0 {
			names = append(names, s.name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	described, err := c.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		c.log.Warn("cannot look up the settings of internal topics; a start may have more to read than it needs", "err", err)
		return
	}
	have := make(map[string]kadm.ResourceConfig, len(described))
	for _, d := range described {
		have[d.Name] = d
	}
	var wanted []spec
	for _, s := range all {
		if len(s.tuned) > 0 && have[s.name].Err == nil && len(untuned(s, have[s.name].Configs)) > 0 {
			wanted = append(wanted, s)
		}
	}
	err = atOnce(len(wanted), func(i int) error {
		s := wanted[i]
		responses, err := c.admin.AlterTopicConfigs(ctx, untuned(s, have[s.name].Configs), s.name)
		if err == nil {
			_, err = responses.On(s.name, func(r *kadm.AlterConfigsResponse) error { return r.Err })
		}
		if err != nil {
			return fmt.Errorf("set what keeps topic %s short: %w", s.name, err)
		}
		return nil
	})
	switch {
	case err != nil:
		c.log.Warn("internal topics keep the settings that they have; a start may have more to read than it needs", "err", err)
	case len(wanted) > 0:
		c.log.Info("internal topics got settings that keep them short", "topics", len(wanted))
	}
}

// ofTheTopic is the source of a setting that somebody has made for the topic itself.
const ofTheTopic = "DYNAMIC_TOPIC_CONFIG"

// untuned are the settings that a topic lacks: of those that the broker knows, and that
// nobody has set for the topic itself.
func untuned(s spec, have []kadm.Config) (alter []kadm.AlterConfig) {
	for _, key := range slices.Sorted(maps.Keys(s.tuned)) {
		want := s.tuned[key]
		for _, x := range have {
			if x.Key == key && x.Source.String() != ofTheTopic && x.MaybeValue() != want {
				alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: &want})
			}
		}
	}
	return alter
}
