from howsmooth.questions.spec import Spec as Spec, spec_of as spec_of, read_study as read_study
from howsmooth.questions.measure import QUANTITIES as QUANTITIES, MeasureSpec as MeasureSpec
from howsmooth.studies.plan import prepare as prepare, prepare_model as prepare_model
from howsmooth.studies.run import measure as measure, records_of as records_of, run_study as run_study
from howsmooth.questions.inputs import resolve as resolve
from howsmooth.studies.costs import CostModel as CostModel
from howsmooth.studies.store import Store as Store
from howsmooth.studies.formats import read_records as read_records, write_records as write_records
from howsmooth.studies.token_effects import move_each_token as move_each_token, move_one_token as move_one_token
