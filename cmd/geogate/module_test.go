package main

import (
	"log/slog"
	"testing"

	"go.uber.org/fx"

	"github.com/geogate/geogate/internal/node"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestWiring checks, without running anything, that everything that the apps of
// serve and demo ask for is provided.
func TestWiring(t *testing.T) {
	us, eu := node.Defaults(), node.Defaults()
	us.Region, eu.Region = "us", "eu"
	for name, app := range map[string]fx.Option{"serve": instances(discard(), false, us), "demo": instances(discard(), false, us, eu)} {
		if err := fx.ValidateApp(app); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
