// Package kubernetes names the kinds of other operators that the chart makes objects of.
package kubernetes

import (
	_ "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)
