from howsmooth.dynamics.integration import integrate as integrate
from howsmooth.dynamics.velocity import Velocity as Velocity
from howsmooth.dynamics.trajectory import Trajectory as Trajectory, Interrupted as Interrupted
from howsmooth.dynamics.renormalised import Renormalised as Renormalised
from howsmooth.dynamics.instruments.records import trajectory_records as trajectory_records
from howsmooth.dynamics.growth import (
    perturbation_growth as perturbation_growth,
    growth_through as growth_through,
    growth_by_map as growth_by_map,
    PerturbationGrowth as PerturbationGrowth,
    local_constant as local_constant,
    FlowDerivative as FlowDerivative,
    with_tangents as with_tangents,
    stack as stack,
    unstack as unstack,
)
from howsmooth.dynamics.fixed_steps import steps_of as steps_of
from howsmooth.dynamics.gaussian_flows import gaussian_flow as gaussian_flow, GaussianFlow as GaussianFlow
from howsmooth.dynamics.gaussian import GaussianState as GaussianState
from howsmooth.dynamics.gaussian_flows import BlowUp as BlowUp
from howsmooth.dynamics.gaussian import blow_up_time as blow_up_time, covariance_at as covariance_at
from howsmooth.dynamics.gaussian_rank import limiting_rank as limiting_rank, LimitingRank as LimitingRank
from howsmooth.dynamics.gaussian_flows import (
    compare_particles as compare_particles,
    ParticleComparison as ParticleComparison,
)
from howsmooth.dynamics.continuity import density_flow as density_flow, DensityFlow as DensityFlow
from howsmooth.dynamics.grid import Density as Density, Grid as Grid
from howsmooth.dynamics.mean_field import (
    mean_field_convergence as mean_field_convergence,
    MeanFieldConvergence as MeanFieldConvergence,
    ConvergenceRate as ConvergenceRate,
)
from howsmooth.dynamics.declaration import read_example as read_example
from howsmooth.dynamics.example import integrate_example as integrate_example
from howsmooth.dynamics.declaration import Example as Example
