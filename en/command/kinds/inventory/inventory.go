// Package inventory executes the command that has the node look at its machine again, and report it.
package inventory

import (
	"context"
	"fmt"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

// New returns the kind. look sends the inventory to the LO, and returns it once the LO has it.
func New(look func(ctx context.Context) (protocol.Inventory, error)) command.Kind {
	return command.Kind{Kind: wire.Inventory, Run: func(ctx context.Context, _ command.Request) (string, error) {
		inv, err := look(ctx)
		if err != nil {
			return "", err
		}
		if inv.EngineFault != "" {
			return "", fmt.Errorf("the inventory is reported, and the container engine does not answer: %s", inv.EngineFault)
		}
		return fmt.Sprintf("%s %s, %d cores, %d bytes of memory, %d peripherals; engine %s %s\n",
			inv.OS, inv.Architecture, inv.Cores, inv.MemoryBytes, len(inv.Peripherals), inv.Engine, inv.EngineVersion), nil
	}}
}
