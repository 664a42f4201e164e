package db

import (
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// NodeColumns selects what sites reported of their nodes, for ScanNode.
const NodeColumns = `select site, id, online, changed_at, version, problem, labels, inventory, restrictions from nodes`

// ScanNode reads a row of NodeColumns.
func ScanNode(row pgx.CollectableRow) (n fleet.Node, err error) {
	var labels, inventory, restrictions []byte
	if err = row.Scan(&n.Site, &n.ID, &n.Online, &n.ChangedAt, &n.Version, &n.Problem, &labels, &inventory, &restrictions); err != nil {
		return n, err
	}
	return n, DecodeNode(&n, labels, inventory, restrictions)
}

// DecodeNode fills the fields of a node that are stored as JSON.
func DecodeNode(n *fleet.Node, labels, inventory, restrictions []byte) error {
	if restrictions != nil {
		if err := json.Unmarshal(restrictions, &n.Report); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(labels, &n.Labels); err != nil {
		return err
	}
	return DecodeInventory(&n.Inventory, inventory)
}

// DecodeInventory decodes the inventory of a node; nil where there is none.
func DecodeInventory(into **protocol.Inventory, inventory []byte) error {
	if inventory == nil {
		return nil
	}
	*into = &protocol.Inventory{}
	return json.Unmarshal(inventory, *into)
}

// LabelText is what stands for a label in node_labels.
func LabelText(k, v string) string { return strings.ReplaceAll(k+"="+v, "\x00", "\uFFFD") }
